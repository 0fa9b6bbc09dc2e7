"""Makes standard input, output and error fit to be used, whatever the caller handed over."""

from __future__ import annotations

import codecs
import os
import sys

#: Signs of our own texts for terminals that cannot show them. Anything else becomes a \\u escape.
_PLAIN = {
    "·": "-", "•": "*", "…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "→": "->", "≥": ">=", "≤": "<=",
    "≈": "~", "±": "+-", "✓": "ok", "✗": "X", "“": '"', "”": '"', "‘": "'", "’": "'", "°": " degrees ",
    "█": "#", "░": ".", "▁": "_",
}  # fmt: skip
#: Name under which the replacement is registered.
ERRORS = "vllm-doctor"


def plain(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs. What cannot be encoded becomes a plain sign or, as in JSON, ``\\uXXXX``.

    A path that is not UTF-8 reaches us with lone surrogates, which no stream takes as they are.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or _escaped(c) for c in text), error.end


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


codecs.register_error(ERRORS, plain)


def prepare() -> None:
    """Opens /dev/null for closed streams, and lets no character end the program.

    A closed descriptor would be given to the next file opened, and what a library prints would go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=ERRORS)


def silence() -> None:
    """Lets what is still buffered for standard output go nowhere, so that Python's own end is quiet."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
