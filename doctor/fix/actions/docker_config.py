"""Changes docker's daemon.json: validated, made known to the daemon, put back when the daemon does not return.

The daemon reads ``runtimes`` and ``default-runtime`` again on SIGHUP, so running containers go on. Only when that
does not do, and no container would be stopped by it, is the daemon restarted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from doctor.fix.action import Keep, Outcome, Preview
from doctor.fix.actions.merge_json import MergeJson
from doctor.fix.actions.write_file import put_back
from doctor.fix.errors import ActionError
from doctor.fix.journal import Run
from doctor.fix.machine import Machine
from doctor.fix.privilege import program, telling

#: Seconds a daemon may take to come back.
RETURN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class DockerConfig(MergeJson):
    """``runtime`` must be listed by the daemon afterwards ("" for none in particular).

    ``reload`` and ``restart`` are commands (argv), empty when this host has none that is known; ``client`` is the
    docker client with the options that lead it to this daemon, ``server`` the daemon's program.
    """

    kind: ClassVar[str] = "docker_config"

    runtime: str = ""
    reload: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    client: tuple[str, ...] = ("docker",)
    server: tuple[str, ...] = ("dockerd",)

    def preview(self, machine: Machine) -> Preview:
        shown = super().preview(machine)
        steps = [(*self.server, "--validate", "--config-file", "NEW-FILE"), *filter(None, (self.reload,))]
        notes = list(shown.notes)
        if self.restart:
            notes.append(f"only if the daemon needs it and no container runs: {' '.join(self.restart)}")
        if not self.reload and not self.restart:
            notes.append("restart the docker daemon afterwards: how it is started here is not known")
        return Preview(
            tuple(machine.privilege.argv(s) if self.root else s for s in steps), shown.diff, tuple(notes)
        )

    def facts(self) -> Mapping[str, Any]:
        return {**super().facts(), "runtime": self.runtime}

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        known = _info(machine, self.client, self.root)
        return {
            **super().before(machine, keep),
            "candidate": f"{machine.temporary(self.path)}.new",
            "runtimes": None if known is None else sorted(known),
            "daemon": {n: list(getattr(self, n)) for n in ("reload", "restart", "client")},
        }

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        for folder in record["folders"]:
            machine.make_folder(folder, self.root)
        self._validate(machine, record)
        self.put(machine, record)
        if not self.reload and not self.restart:
            return {}
        up = record["runtimes"] is not None
        if up and self.reload and machine.run(self.reload, root=self.root).ok and self._arrived(machine, 5):
            return {"by": "reload"}
        if not self.restart:
            raise ActionError("the docker daemon did not take the change, and how to restart it is not known here")
        running = _running(machine, self.client, self.root)
        if running:
            names = ", ".join(running[:5])
            raise ActionError(
                f"the docker daemon has to be restarted, which would stop {len(running)} running containers "
                f"({names}); stop them first, or switch on live-restore"
            )
        machine.run(self.restart, root=self.root, timeout=RETURN_S)
        if not self._arrived(machine, RETURN_S):
            raise ActionError("the docker daemon did not come back with the new configuration")
        return {"by": "restart"}

    def _validate(self, machine: Machine, record: Mapping[str, Any]) -> None:
        candidate = record["temporary"]
        written = record["written"]
        who = {k: written[k] for k in ("mode", "uid", "gid")}
        machine.write(candidate, self.content, root=self.root, temporary=record["candidate"], **who)
        answer = machine.run((*self.server, "--validate", "--config-file", candidate), root=self.root)
        if not answer.ok and not answer.error and "unknown flag: --validate" not in answer.stdout + answer.stderr:
            raise ActionError(f"dockerd refuses the new configuration: {telling(answer)}")

    def _arrived(self, machine: Machine, seconds: float) -> bool:
        return _wait(machine, self.client, self.root, seconds, self.runtime)

    def verify(self, machine: Machine) -> str | None:
        wrong = super().verify(machine)
        if wrong or not self.runtime or not (self.reload or self.restart):
            return wrong
        info = _info(machine, self.client, self.root)
        if info is None or self.runtime not in info:
            return f"the docker daemon does not list the runtime {self.runtime}"
        return None

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        outcome = put_back(machine, run, record)
        if outcome.kept or record["runtimes"] is None:
            return outcome  # the daemon was down before, so it is not started
        return _as_before(machine, record) or outcome


def _as_before(machine: Machine, record: Mapping[str, Any]) -> Outcome | None:
    """Brings the daemon to what it knew before; None when it does."""
    daemon, was = record["daemon"], set(record["runtimes"])
    client, root = daemon["client"], bool(record["root"])
    if set(_info(machine, client, root) or ()) == was:
        return None
    if daemon["reload"] and machine.run(daemon["reload"], root=root).ok:
        for _ in range(10):
            if set(_info(machine, client, root) or ()) == was:
                return None
            machine.sleep(0.5)
    up = _info(machine, client, root) is not None
    if daemon["restart"] and not (up and _running(machine, client, root)):
        machine.run(daemon["restart"], root=root, timeout=RETURN_S)
        up = _wait(machine, client, root, RETURN_S)
    if not up:
        raise ActionError(f"{record['path']} is as it was, but the docker daemon does not answer")
    if set(_info(machine, client, root) or ()) == was:
        return None
    return Outcome(False, "the docker daemon forgets the runtime at its next restart")


def _info(machine: Machine, client: Any, root: bool) -> dict[str, Any] | None:
    """The daemon's runtimes, or None when it does not answer."""
    answer = machine.run((*client, "info", "--format", "{{json .Runtimes}}"), root=root, timeout=10)
    try:
        found = json.loads(answer.stdout) if answer.ok else None
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    # Docker 20.10 lists its built-in shims until the first reload, and no more after it
    return {name: value for name, value in found.items() if not name.startswith("io.containerd.")}


def _wait(machine: Machine, client: Any, root: bool, seconds: float, runtime: str = "") -> bool:
    for _ in range(max(1, int(seconds * 2))):
        found = _info(machine, client, root)
        if found is not None and (not runtime or runtime in found):
            return True
        machine.sleep(0.5)
    return False


def _running(machine: Machine, client: Any, root: bool) -> list[str]:
    """Names of containers that a restart would stop: none with live-restore, or with a daemon that is down."""
    live = machine.run((*client, "info", "--format", "{{.LiveRestoreEnabled}}"), root=root, timeout=10)
    if not live.ok or live.stdout.strip() == "true":
        return []
    shown = machine.run((*client, "ps", "--format", "{{.Names}}"), root=root, timeout=10)
    return shown.stdout.split() if shown.ok else []


def control(systemd: bool | None, pid: str | None, init_script: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Commands that make the daemon read its configuration again, and that restart it."""
    if systemd:
        systemctl = program("systemctl")
        return (systemctl, "reload", "docker"), (systemctl, "restart", "docker")
    reload = (program("kill"), "-HUP", pid) if pid and pid.isdigit() else ()
    return reload, ((program("service"), "docker", "restart") if init_script else ())
