"""What was done, written before it is done.

A run has a folder: ``journal.jsonl``, one JSON object a line, and ``kept/`` with the bytes of files as they were,
named by their sha256. A line is appended and fsynced before each step ("begin", with the prior state) and after it
("done"). A torn last line is what a power loss leaves; it is ignored, and the step before it is still known.

Readers accept every version up to their own, ignore fields and kinds of lines that they do not know, and refuse a
newer version.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from doctor import __version__
from doctor.errors import DoctorError
from doctor.fix.files import LARGEST_BYTES, Syscalls, digest, write_durably
from doctor.fix.state import State

#: Version of the journal's form. Readers accept this one and older.
VERSION = 1
_RUN = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")


@dataclass
class Entry:
    """One step of a run. ``outcome`` is None while it is open: begun and neither done nor taken back."""

    step: int
    action: str
    kind: str
    summary: str
    record: dict[str, Any]  # what revert needs, prior state included
    causes: tuple[str, ...] = ()
    outcome: str | None = None  # "done", "failed", "reverted", "kept"
    after: dict[str, Any] = field(default_factory=dict)
    why: str = ""

    @property
    def standing(self) -> bool:
        """True while the step, or a part of it, may be in effect."""
        return self.outcome != "reverted"


@dataclass
class Run:
    """One run read back from its journal."""

    id: str
    folder: Path
    at: str = ""
    uid: int | None = None
    doctor: str = ""
    plan: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    ended: str | None = None  # "done", "failed", "interrupted", "settled"; None: it was killed
    undone: str | None = None  # "complete", "incomplete", "begun"
    damaged: int = 0  # lines that cannot be read and are not the torn last one

    @property
    def open_steps(self) -> list[Entry]:
        """Steps that were begun and never ended: half-done, perhaps."""
        return [e for e in self.entries if e.outcome is None]

    @property
    def standing(self) -> list[Entry]:
        """Steps that an undo would have to take back."""
        return [e for e in self.entries if e.standing]

    @property
    def unfinished(self) -> bool:
        """True when the run was killed or interrupted, or its undo was, and nobody has dealt with it since."""
        if self.undone == "complete" or self.ended == "settled":
            return False
        return bool(self.standing) and (self.ended in (None, "interrupted") or bool(self.open_steps))

    def status(self) -> str:
        """One word or two for people."""
        if self.undone == "complete" or not self.standing:
            return "undone" if self.undone else ("nothing done" if self.ended else "stopped before its first step")
        if self.undone:
            return "partly undone"
        if self.open_steps or self.ended is None:
            return "half-done"
        return {"done": "applied", "failed": "failed", "interrupted": "interrupted", "settled": "applied in part"}[
            self.ended
        ]

    def kept(self, sha256: str) -> Path:
        """Where the bytes of a file as it was are kept."""
        return self.folder / "kept" / sha256

    def kept_bytes(self, sha256: str) -> bytes:
        """The bytes of a file as it was. Raises OSError or ValueError when they are not what was kept."""
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ValueError("not a sha256")
        fd = os.open(self.kept(sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        if digest(data) != sha256:
            raise ValueError(f"the kept copy {self.kept(sha256)} is damaged")
        return data


class Journal:
    """The writer of one run's journal. Every method returns only when its line is on the disk."""

    def __init__(self, run: Run, calls: Syscalls, fd: int) -> None:
        self.run = run
        self._calls = calls
        self._fd = fd
        self._torn = False  # a write failed half-way, on a full disk for example

    @classmethod
    def start(cls, state: State, plan: Mapping[str, Any], now: float) -> Journal:
        """A new run. Raises DoctorError when it cannot be written: then nothing may be changed."""
        stamp = datetime.fromtimestamp(now, timezone.utc)
        run_id = f"{stamp:%Y%m%dT%H%M%SZ}-{stamp:%f}"  # in the order of time, two within a second too
        folder = state.runs / run_id
        calls = state.calls
        try:
            calls.mkdir(str(folder), 0o700)
            calls.mkdir(str(folder / "kept"), 0o700)
            path = str(folder / "journal.jsonl")
            calls.close(calls.create(path))
            fd = calls.append(path)
            run = Run(run_id, folder, f"{stamp:%Y-%m-%dT%H:%M:%SZ}", os.geteuid(), __version__, dict(plan))
            journal = cls(run, calls, fd)
            journal._append({"type": "run", "id": run_id, "at": run.at, "uid": run.uid, "doctor": __version__,
                             "plan": run.plan})  # fmt: skip
            calls.fsync_folder(str(folder))
            calls.fsync_folder(str(state.runs))
        except OSError as error:
            raise DoctorError(
                f"cannot write the journal in {folder}: {error.strerror}; nothing was changed"
            ) from None
        return journal

    @classmethod
    def reopen(cls, run: Run, calls: Syscalls) -> Journal:
        """Goes on with the journal of an earlier run. A torn last line is closed first."""
        path = run.folder / "journal.jsonl"
        try:
            fd = calls.append(str(path))
            journal = cls(run, calls, fd)
            text = path.read_bytes()
            if text and not text.endswith(b"\n"):
                calls.write(fd, b"\n")
                journal._append({"type": "torn"})
        except OSError as error:
            raise DoctorError(f"cannot write {path}: {error.strerror}") from None
        return journal

    def keep(self, data: bytes) -> str:
        """Keeps the bytes of a file as it was; returns their sha256."""
        name = digest(data)
        path = self.run.kept(name)
        if not path.exists():
            write_durably(self._calls, str(path), data, mode=0o600)
        return name

    def begin(self, entry: Entry) -> None:
        """Before a step: all that is needed to take it back."""
        self._append({"type": "begin", "step": entry.step, "action": entry.action, "kind": entry.kind,
                      "summary": entry.summary, "for": list(entry.causes), "record": entry.record})  # fmt: skip
        self.run.entries.append(entry)

    def done(self, entry: Entry, after: Mapping[str, Any]) -> None:
        """After a step that worked."""
        self._append({"type": "done", "step": entry.step, "after": dict(after)})
        entry.outcome, entry.after = "done", dict(after)

    def failed(self, entry: Entry, why: str) -> None:
        """After a step that did not work; it may be half-done."""
        entry.outcome, entry.why = "failed", why
        self._append({"type": "failed", "step": entry.step, "why": why})

    def reverting(self, entry: Entry) -> None:
        """Before a step is taken back."""
        self._append({"type": "reverting", "step": entry.step})

    def reverted(self, entry: Entry, outcome: str, why: str) -> None:
        """After it; ``outcome`` is "reverted" or "kept"."""
        entry.outcome, entry.why = outcome, why
        self._append({"type": outcome, "step": entry.step, "why": why})

    def end(self, how: str) -> None:
        """The run is over: "done", "failed", "interrupted" or "settled"."""
        self.run.ended = how
        self._append({"type": "end", "how": how})

    def undo(self, how: str) -> None:
        """An undo began ("begun") or ended ("complete", "incomplete")."""
        self.run.undone = how
        self._append({"type": "undo", "how": how})

    def close(self) -> None:
        """Gives the file back."""
        self._calls.close(self._fd)

    def _append(self, line: Mapping[str, Any]) -> None:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = json.dumps({"v": VERSION, "t": now, **line}, ensure_ascii=False, separators=(",", ":"))
        data = text.encode("utf-8", "surrogateescape") + b"\n"
        if self._torn:
            data = b'\n{"v":1,"type":"torn"}\n' + data
        self._torn = True
        self._calls.write(self._fd, data)
        self._calls.fsync(self._fd)
        self._torn = False


def read(folder: Path) -> Run:
    """One run from its folder. Raises DoctorError for a journal of a newer doctor or one that is not ours."""
    run = Run(folder.name, folder)
    path = folder / "journal.jsonl"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            lines = file.read().split(b"\n")[:-1]  # after the last newline: nothing, or a line that was cut
    except FileNotFoundError:
        return run  # killed before the journal existed: nothing was changed
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from None
    for raw in lines:
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
        except ValueError:
            run.damaged += 1
            continue
        if isinstance(line, dict):
            _take(run, line, path)
    return run


def _take(run: Run, line: dict[str, Any], path: Path) -> None:
    version = line.get("v")
    if not isinstance(version, int) or version > VERSION:
        raise DoctorError(
            f"{path} was written by a newer vllm-doctor (version {version!r}); undo it with that one"
        )
    kind = line.get("type")
    if kind == "run":
        run.at, run.uid = str(line.get("at", "")), line.get("uid")
        run.doctor, run.plan = str(line.get("doctor", "")), line.get("plan") or {}
    elif kind == "begin":
        run.entries.append(
            Entry(line["step"], line["action"], line["kind"], line.get("summary", ""), line.get("record") or {},
                  tuple(line.get("for") or ()))
        )  # fmt: skip
    elif kind == "torn":
        run.damaged = max(
            0, run.damaged - 1
        )  # the line before this one was cut by a power loss, and is known to be
    elif kind == "end":
        run.ended = line.get("how")
    elif kind == "undo":
        run.undone = line.get("how")
    elif kind in ("done", "failed", "reverted", "kept"):
        entry = next((e for e in run.entries if e.step == line.get("step")), None)
        if entry is not None:
            entry.outcome, entry.why = kind, str(line.get("why", ""))
            entry.after = line.get("after") or entry.after


def all_runs(state: State) -> list[Run]:
    """Every run, oldest first."""
    if not state.exists() or not state.runs.is_dir():
        return []
    return [read(state.runs / name) for name in sorted(os.listdir(state.runs)) if _RUN.fullmatch(name)]
