"""Writes one file whole. The merging actions are this one with bytes made from what was there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar, TypeVar

from doctor.fix.action import Action, Keep, Outcome, Preview
from doctor.fix.errors import ActionError
from doctor.fix.files import FileState, digest
from doctor.fix.journal import Run
from doctor.fix.machine import Machine
from doctor.host.access import Host

T = TypeVar("T", bound="WriteFile")


@dataclass(frozen=True, kw_only=True)
class WriteFile(Action):
    """``content`` replaces ``original`` (None: no file). An existing file keeps its mode and owner.

    ``after`` are commands (argv) that make the change known, such as ldconfig; they are run again when the file
    is put back.
    """

    kind: ClassVar[str] = "write_file"

    path: str
    content: bytes = field(repr=False)
    original: bytes | None = field(repr=False, default=None)
    mode: int = 0o644
    after: tuple[tuple[str, ...], ...] = ()

    def preview(self, machine: Machine) -> Preview:
        commands = tuple(machine.privilege.argv(c) if self.root else c for c in self.after)
        notes = ("as root",) if self.root and not machine.privilege.is_root else ()
        return Preview(commands, diff(self.path, self.original, self.content), notes)

    def facts(self) -> Mapping[str, Any]:
        original = None if self.original is None else digest(self.original)
        return {"path": self.path, "was": original, "becomes": digest(self.content)}

    def already_done(self, machine: Machine) -> bool:
        state, _ = machine.look(self.path, self.root)
        return state.sha256 == digest(self.content)

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        state, data = machine.look(self.path, self.root)
        if state.kind not in ("absent", "file"):
            raise ActionError(f"{self.path} is a {state.kind}, not a plain file: it is not replaced")
        if data != self.original:
            raise ActionError(f"{self.path} has changed since the plan was made; make a new one")
        if data is not None:
            keep(data)
        uid, gid = machine.owner_for(self.path, self.root)
        written = {
            "sha256": digest(self.content),
            "mode": state.mode if data is not None else self.mode,
            "uid": state.uid if data is not None else uid,
            "gid": state.gid if data is not None else gid,
        }
        return {
            "path": self.path,
            "root": self.root,
            "prior": state.dump(),
            "written": written,
            "folders": missing_folders(machine, self.path, self.root),
            "temporary": machine.temporary(self.path),
            "after": [list(c) for c in self.after],
        }

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        for folder in record["folders"]:
            machine.make_folder(folder, self.root)
        self.put(machine, record)
        for command in self.after:
            machine.must(command, root=self.root)
        return {}

    def put(self, machine: Machine, record: Mapping[str, Any]) -> None:
        """Writes the bytes, with the mode and owner of the record."""
        written = record["written"]
        machine.write(
            self.path,
            self.content,
            mode=written["mode"],
            uid=written["uid"],
            gid=written["gid"],
            root=self.root,
            temporary=record["temporary"],
        )

    def verify(self, machine: Machine) -> str | None:
        return None if self.already_done(machine) else f"{self.path} does not hold what was written"

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        outcome = put_back(machine, run, record)
        if not outcome.kept:  # also when only these were left to do, after a kill
            for command in record.get("after", ()):
                machine.must(command, root=bool(record["root"]))
        return outcome

    @classmethod
    def plan(cls: type[T], host: Host, path: str, content: bytes, **rest: Any) -> T:
        """An action for a file as the host has it now. Raises ActionError when it cannot be read."""
        return cls(path=path, content=content, original=read_original(host, path), **rest)


def read_original(host: Host, path: str) -> bytes | None:
    """The bytes of a file that is to be changed, or None when there is none."""
    link = host.readlink(path)
    if link is not None:
        raise ActionError(f"{path} is a symbolic link to {link}: change that file by hand")
    data = host.read_bytes(path, 1 << 20)
    if data is None and host.exists(path):
        raise ActionError(f"{path} cannot be read by this user")
    return data


def put_back(machine: Machine, run: Run, record: Mapping[str, Any]) -> Outcome:
    """Restores a file when it is still what was written."""
    path, root = record["path"], bool(record["root"])
    prior, written = FileState.load(record["prior"]), record["written"]
    for name in ("temporary", "candidate"):
        if name in record and machine.look(record[name], root)[0].kind == "file":
            machine.remove(record[name], root)  # a kill came between writing and renaming
    state, _ = machine.look(path, root)
    if not state.same_content(prior):
        ours = FileState("file", **{k: written[k] for k in ("sha256", "mode", "uid", "gid")})
        if not state.same_content(ours):
            return Outcome(True, _kept(path, state, prior, run, written))
        if prior.kind == "absent":
            machine.remove(path, root)
        else:
            assert prior.sha256 is not None and prior.mode is not None  # noqa: S101, PT018  recorded for every file
            assert prior.uid is not None and prior.gid is not None  # noqa: S101, PT018
            machine.write(
                path,
                run.kept_bytes(prior.sha256),
                mode=prior.mode,
                uid=prior.uid,
                gid=prior.gid,
                root=root,
                temporary=record["temporary"],
            )
    left = [
        f for f in reversed(record["folders"]) if not machine.remove_empty_folder(f, root) and _there(machine, f)
    ]
    # what others have put into a folder of ours stays, and so does the folder: nothing of ours is in it
    return Outcome(False, f"{left[0]} stays, it is in use" if left else "")


def _there(machine: Machine, folder: str) -> bool:
    return machine.look(folder)[0].kind != "absent"


def _kept(path: str, state: FileState, prior: FileState, run: Run, written: Mapping[str, Any]) -> str:
    if state.kind == "absent":
        what = f"{path} was removed since, so it is not put back"
    elif state.sha256 == written["sha256"]:
        what = f"mode or owner of {path} were changed since, so it is kept as it is"
    else:
        what = f"{path} was changed since, so it is kept as it is"
    if prior.sha256 is None:
        return f"{what}; there was no such file before"
    return f"{what}; the original is in {run.kept(prior.sha256)}"


def missing_folders(machine: Machine, path: str, root: bool) -> list[str]:
    """Folders above ``path`` that do not exist, topmost first."""
    missing: list[str] = []
    for folder in PurePosixPath(path).parents:
        if machine.look(str(folder), root)[0].kind != "absent":
            break
        missing.insert(0, str(folder))
    return missing


def diff(path: str, before: bytes | None, after: bytes) -> str:
    """A unified diff that names a new file as such."""
    old = (before or b"").decode("utf-8", "replace").splitlines()
    new = after.decode("utf-8", "replace").splitlines()
    lines = difflib.unified_diff(old, new, "/dev/null" if before is None else path, path, lineterm="")
    return "\n".join(lines) + "\n"
