"""``python -m doctor``: the same command without a console script on PATH."""

import sys

from doctor.cli import main

if __name__ == "__main__":
    sys.exit(main())
