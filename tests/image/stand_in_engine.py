"""A docker or podman that does what a plan says and nothing else. Installed as a script; see ``install``.

Every call is written down. One that the plan lacks ends with 99 and is written down as unplanned.
"""

import json
import os
import re
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def write(call):
    with open(os.path.join(HERE, "calls.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(call) + "\n")


def planned(argv, plan):
    for entry in plan:
        if len(entry["argv"]) == len(argv) and all(
            re.fullmatch(p, a)
            for p, a in zip(entry["argv"], argv)  # noqa: B905  any Python 3
        ):
            return entry
    return None


def main():
    argv = sys.argv[1:]
    with open(os.path.join(HERE, "plan.json"), encoding="utf-8") as file:
        entry = planned(argv, json.load(file))
    call = {"argv": argv, "program": os.path.basename(sys.argv[0]), "unplanned": entry is None}
    call["env"] = {k: v for k, v in os.environ.items() if k.startswith(("DOCKER", "BUILD", "LC_ALL"))}
    if argv[:1] == ["build"] and os.path.isdir(argv[-1]):
        call["context"] = sorted(
            os.path.relpath(os.path.join(folder, name), argv[-1])
            for folder, _, names in os.walk(argv[-1])
            for name in names
        )
    write(call)
    if entry is None:
        sys.stderr.write(f"unplanned: {argv}\n")
        return 99
    if entry.get("deaf"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write(entry.get("out", ""))
    sys.stdout.flush()
    sys.stderr.write(entry.get("err", ""))
    sys.stderr.flush()
    if entry.get("sleep"):
        write({"argv": ["sleeping"], "pid": os.getpid(), "unplanned": False})
        try:
            time.sleep(entry["sleep"])
        except KeyboardInterrupt:
            write({"argv": ["interrupted"], "unplanned": False})
            return 130
    return entry.get("rc", 0)


if __name__ == "__main__":
    sys.exit(main())
