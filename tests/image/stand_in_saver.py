"""Plays `docker` for the archive: a program that answers from a folder, and refuses what a test did not plan."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["STAND_IN_ENGINE"])
PLAN = json.loads((FOLDER / "plan.json").read_text())


def main(words: list[str]) -> int:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    if words[:4] == ["image", "inspect", "--format", "{{.Size}}"]:
        if PLAN.get("no_image"):
            print("Error: No such image: " + words[4], file=sys.stderr)
            return 1
        print(PLAN["size"])
    elif words[:2] == ["info", "--format"]:
        print(f"{PLAN.get('root', '/nowhere')}|{PLAN.get('status', '[]')}")
    elif words[0] == "create":
        assert words[1] == "--pull=never"
        print("0123abc")
    elif words[0] == "cp":
        assert words[1] == "0123abc:/opt/vllm-doctor/sbom.cdx.json"
        if not (FOLDER / "sbom").exists():
            print("Error: No such container:path: " + words[1], file=sys.stderr)
            return 1
        Path(words[2]).write_bytes((FOLDER / "sbom").read_bytes())
    elif words[0] == "rm":
        print(words[-1])
    elif words[0] == "save":
        (FOLDER / "pid").write_text(str(os.getpid()))
        return save()
    else:
        print(f"not planned: {words}", file=sys.stderr)
        return 99
    return 0


def save() -> int:
    data = (FOLDER / "saved.tar").read_bytes()
    sent = data[: PLAN.get("cut", len(data))]
    sys.stdout.buffer.write(sent)
    sys.stdout.buffer.flush()
    time.sleep(PLAN.get("sleep", 0))
    if PLAN.get("error"):
        print(PLAN["error"], file=sys.stderr)
    return int(PLAN.get("exit", 0))


sys.exit(main(sys.argv[1:]))
