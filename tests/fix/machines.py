"""A machine for tests of repairs: real files below a folder, programs played by models that keep their state.

Programs that no model plays are refused.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from doctor.fix.files import Syscalls
from doctor.fix.journal import Journal
from doctor.fix.machine import Machine
from doctor.fix.privilege import Privilege
from doctor.fix.state import State
from doctor.host.access import RunResult

#: Programs that are really run, on the folder's files.
REAL = frozenset({"install", "sync", "mv", "rm", "mkdir", "rmdir"})
Program = Callable[[tuple[str, ...]], RunResult]


def ok(argv: Sequence[str], out: str = "") -> RunResult:
    return RunResult(tuple(argv), returncode=0, stdout=out)


def fails(argv: Sequence[str], code: int, text: str) -> RunResult:
    return RunResult(tuple(argv), returncode=code, stderr=text)


class Tracer(Syscalls):
    """Records every call; ``hook`` is called before each and may raise or kill."""

    def __init__(self, hook: Callable[[str, str], None] | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.hook = hook
        self._names: dict[int, str] = {}

    def _note(self, what: str, path: str) -> None:
        self.calls.append((what, path))
        if self.hook is not None:
            self.hook(what, path)

    def create(self, path: str, mode: int = 0o600) -> int:
        self._note("create", path)
        fd = super().create(path, mode)
        self._names[fd] = path
        return fd

    def append(self, path: str) -> int:
        fd = super().append(path)
        self._names[fd] = path
        return fd

    def write(self, fd: int, data: bytes) -> None:
        self._note("write", self._names[fd])
        super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._note("fsync", self._names[fd])
        super().fsync(fd)

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        self._note("fchown", self._names[fd])
        super().fchown(fd, uid, gid)

    def fchmod(self, fd: int, mode: int) -> None:
        self._note("fchmod", self._names[fd])
        super().fchmod(fd, mode)

    def rename(self, source: str, target: str) -> None:
        self._note("rename", f"{source} -> {target}")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._note("unlink", path)
        super().unlink(path)

    def mkdir(self, path: str, mode: int) -> None:
        self._note("mkdir", path)
        super().mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        self._note("rmdir", path)
        super().rmdir(path)

    def fsync_folder(self, path: str) -> None:
        self._note("fsync folder", path)
        super().fsync_folder(path)


class Stored:
    """A model's state in a JSON file, so that it outlives a killed process."""

    def __init__(self, path: Path, start: Mapping[str, Any]) -> None:
        self.path = path
        if not path.exists():
            self.save(start)

    def load(self) -> Any:
        return json.loads(self.path.read_text())

    def save(self, data: Any) -> None:
        # a power loss of the modelled program is not what is tested
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(data))
        temporary.replace(self.path)


class Apt:
    """dpkg's and apt's part: packages with dependencies, installed and removed one by one."""

    DEPENDS: Mapping[str, tuple[str, ...]] = {
        "g++-12": ("libstdc++-12-dev", "gcc-12"),
        "libstdc++-12-dev": ("libc6-dev",),
        "libc6-dev": (),
        "gcc-12": (),
        "other-dev": ("libc6-dev",),
        "evil": (),
    }

    def __init__(self, folder: Path) -> None:
        start = {
            "installed": {"base-files": "1", "gcc-12": "12.2"},
            "manual": ["base-files", "gcc-12"],
            "known": True,
        }
        self.db = Stored(folder / "apt.json", start)
        self.trouble: str | None = None  # "lock", "network"
        self.between: Callable[[str], None] | None = None  # called before each package changes

    def installed(self) -> dict[str, str]:
        return dict(self.db.load()["installed"])

    def _missing(self, names: Sequence[str], have: Mapping[str, str]) -> list[str]:
        out: list[str] = []
        for name in names:
            if name not in have and name not in out:
                out = [*self._missing(self.DEPENDS[name], [*have, *out]), *out, name]  # type: ignore[arg-type]
        return list(dict.fromkeys(out))

    def _dependents(self, names: Sequence[str], have: Mapping[str, str]) -> list[str]:
        out = list(names)
        while True:
            more = [p for p in have if p not in out and set(self.DEPENDS.get(p, ())) & set(out)]
            if not more:
                return [n for n in out if n in have]
            out += more

    def apt_get(self, argv: tuple[str, ...]) -> RunResult:
        words = [w for i, w in enumerate(argv[1:], 1) if not w.startswith("-") and argv[i - 1] != "-o"]
        verb, names = words[0], words[1:]
        data = self.db.load()
        have = data["installed"]
        simulate = "-s" in argv
        if verb == "update":
            if self.trouble == "network":
                return fails(
                    argv, 100, "E: Failed to fetch http://mirror.example/debian Temporary failure resolving"
                )
            data["known"] = True
            self.db.save(data)
            return ok(argv)
        unknown = [n for n in names if n not in self.DEPENDS or not data["known"]]
        if unknown:
            return fails(argv, 100, f"E: Unable to locate package {unknown[0]}")
        todo = self._missing(names, have) if verb == "install" else self._dependents(names, have)
        if simulate:
            word = "Inst" if verb == "install" else "Purg"
            lines = [f"{word} {n} (12.2 Debian:12.11/stable [amd64])" for n in todo]
            lines += ["Remv base-files [1]"] if "evil" in names and verb == "install" else []
            return ok(argv, "\n".join(lines) + "\n")
        if self.trouble == "lock":
            return fails(
                argv, 100, "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1 (apt)"
            )
        if self.trouble == "network" and verb == "install":
            return fails(argv, 100, "E: Failed to fetch http://mirror.example/debian/pool/main/g++-12.deb")
        for name in todo:
            if self.between is not None:
                self.between(name)
            if verb == "install":
                have[name] = "12.2"
                if name in names:
                    data["manual"].append(name)
            else:
                del have[name]
                data["manual"] = [m for m in data["manual"] if m != name]
            self.db.save(data)
        return ok(argv)

    def apt_mark(self, argv: tuple[str, ...]) -> RunResult:
        return ok(argv, "\n".join(self.db.load()["manual"]) + "\n")

    def dpkg(self, argv: tuple[str, ...]) -> RunResult:
        return ok(argv, "amd64\n" if argv[1] == "--print-architecture" else "")

    def dpkg_query(self, argv: tuple[str, ...]) -> RunResult:
        if "${Conffiles}" in argv[3]:
            return ok(argv, "\n")
        return ok(argv, "".join(f"{n}\tamd64\tinstalled\t{v}\n" for n, v in self.installed().items()))


class Groups:
    """getent and gpasswd."""

    def __init__(self, folder: Path) -> None:
        self.db = Stored(folder / "groups.json", {"docker": ["ann"]})

    def getent(self, argv: tuple[str, ...]) -> RunResult:
        groups = self.db.load()
        if argv[2] not in groups:
            return fails(argv, 2, "")
        return ok(argv, f"{argv[2]}:x:998:{','.join(groups[argv[2]])}\n")

    def gpasswd(self, argv: tuple[str, ...]) -> RunResult:
        groups = self.db.load()
        _, what, user, group = argv
        members = [m for m in groups[group] if m != user]
        groups[group] = [*members, user] if what == "--add" else members
        self.db.save(groups)
        return ok(argv)


class Kernel:
    """sysctl."""

    def __init__(self, folder: Path) -> None:
        self.db = Stored(folder / "sysctl.json", {"vm.overcommit_memory": "0"})

    def sysctl(self, argv: tuple[str, ...]) -> RunResult:
        values = self.db.load()
        if argv[1] == "-n":
            return ok(argv, values[argv[2]] + "\n") if argv[2] in values else fails(argv, 1, "no such key")
        key, _, value = argv[-1].partition("=")
        values[key] = value
        self.db.save(values)
        return ok(argv)


class Daemon:
    """A docker daemon that reads a configuration file on SIGHUP and at its start, and dies of a bad one."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.config = config
        self.db = Stored(
            folder / "docker.json", {"up": True, "runtimes": ["runc"], "containers": [], "live": False}
        )
        self.takes_reload = True
        self.refuses = False  # a configuration that passes --validate and kills the daemon

    def _read(self) -> list[str] | None:
        try:
            document = json.loads(self.config.read_text()) if self.config.exists() else {}
        except ValueError:
            return None
        if self.refuses and document.get("runtimes"):
            return None
        return ["runc", *document.get("runtimes", {})]

    def reload(self, argv: tuple[str, ...]) -> RunResult:
        data = self.db.load()
        runtimes = self._read()
        if data["up"] and runtimes is not None and self.takes_reload:
            data["runtimes"] = runtimes
            self.db.save(data)
        return ok(argv) if data["up"] else fails(argv, 1, "kill: (1): No such process")

    def restart(self, argv: tuple[str, ...]) -> RunResult:
        data = self.db.load()
        runtimes = self._read()
        data.update(up=runtimes is not None, runtimes=runtimes or [], containers=[])
        self.db.save(data)
        return ok(argv) if data["up"] else fails(argv, 1, "Job for docker.service failed")

    def dockerd(self, argv: tuple[str, ...]) -> RunResult:
        try:
            json.loads(Path(argv[argv.index("--config-file") + 1]).read_text())
        except ValueError as error:
            return fails(argv, 1, f"unable to configure the Docker daemon with file: {error}")
        return ok(argv, "configuration OK\n")

    def docker(self, argv: tuple[str, ...]) -> RunResult:
        data = self.db.load()
        if not data["up"]:
            return fails(argv, 1, "Cannot connect to the Docker daemon")
        if "info" in argv and "Runtimes" in argv[-1]:
            return ok(argv, json.dumps({r: {} for r in data["runtimes"]}))
        if "info" in argv:
            return ok(argv, "true\n" if data["live"] else "false\n")
        return ok(argv, "".join(f"{c}\n" for c in data["containers"]))


class Pip:
    """An environment's Python: what is installed, and pip's resolver."""

    def __init__(self, folder: Path) -> None:
        self.db = Stored(folder / "pip.json", {"vllm": "0.26.0", "transformers": "5.0.0", "numpy": "2.2.0"})
        self.trouble: str | None = None

    def python(self, argv: tuple[str, ...]) -> RunResult:
        have = self.db.load()
        if argv[1:3] == ("-I", "-c"):
            if "json.dumps" in argv[3]:
                return ok(argv, json.dumps(have))
            missing = [s for s in argv[4:] if have.get(s.split("==")[0]) != s.partition("==")[2]]
            return fails(argv, 4, "") if missing else ok(argv)
        words = argv[5:]
        named = [w for w in words[1:] if not w.startswith("-")]
        if self.trouble == "network" and words[0] == "install":
            return fails(argv, 1, "ERROR: Could not find a version that satisfies the requirement")
        if "--dry-run" in words:
            rows = [dict(zip(("name", "version"), s.split("=="), strict=True)) for s in named if s != "-"]
            rows.append({"name": "tokenizers", "version": "0.22.0"})
            rows = [r for r in rows if have.get(r["name"]) != r["version"]]
            return ok(argv, json.dumps({"install": [{"metadata": r} for r in rows]}))
        for spec in named:
            if words[0] == "install":
                name, _, version = spec.partition("==")
                have[name] = version
            else:
                have.pop(spec, None)
            self.db.save(have)
        return ok(argv)


class World:
    """A folder with a machine in it. Made again from the same folder, it is the same machine after a restart."""

    def __init__(
        self, root: Path, *, calls: Syscalls | None = None, is_root: bool = True, sudo: bool = True
    ) -> None:
        self.root = root
        self.files = root / "files"
        self.models = root / "models"
        self.files.mkdir(exist_ok=True)
        self.models.mkdir(exist_ok=True)
        self.apt = Apt(self.models)
        self.groups = Groups(self.models)
        self.kernel = Kernel(self.models)
        self.daemon = Daemon(self.models, self.files / "etc/docker/daemon.json")
        self.pip = Pip(self.models)
        self.before: Callable[[tuple[str, ...]], RunResult | None] | None = None
        self.ran: list[tuple[str, ...]] = []
        self.environments: list[dict[str, str]] = []
        self.state = State(root / "state", calls)
        self.started = 0
        self.privilege = Privilege(is_root, "/usr/bin/sudo" if sudo and not is_root else "", ask=False)
        self.machine = Machine(
            self.privilege,
            staging=self.state.folder,
            calls=calls,
            run=self.run,
            env={"PATH": "/usr/bin", "HOME": str(self.files / "home"), "LD_PRELOAD": "/evil.so"},
            sleep=lambda s: None,
            downloads=str(self.files / "var/cache/apt/archives"),
        )

    def path(self, name: str) -> str:
        return str(self.files / name.lstrip("/"))

    def put(self, name: str, text: str | bytes, mode: int = 0o644) -> str:
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return str(path)

    def journal(self) -> Journal:
        self.state.make()
        self.started += 1
        return Journal.start(self.state, {}, 1_800_000_000.0 + self.started + len(os.listdir(self.state.runs)))

    def programs(self) -> dict[str, Program]:
        return {
            "apt-get": self.apt.apt_get,
            "apt-mark": self.apt.apt_mark,
            "dpkg": self.apt.dpkg,
            "dpkg-query": self.apt.dpkg_query,
            "getent": self.groups.getent,
            "gpasswd": self.groups.gpasswd,
            "sysctl": self.kernel.sysctl,
            "reload-docker": self.daemon.reload,
            "restart-docker": self.daemon.restart,
            "dockerd": self.daemon.dockerd,
            "docker": self.daemon.docker,
            "python": self.pip.python,
            "ldconfig": ok,
            "true": ok,
        }

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout: float) -> RunResult:
        whole = tuple(argv)
        self.ran.append(whole)
        self.environments.append(dict(env))
        if self.before is not None and (answer := self.before(whole)) is not None:
            return answer
        if os.path.basename(whole[0]) == "sudo":
            at = whole.index("-i") + 1
            while re.match(r"[A-Za-z_]+=", whole[at]):
                at += 1
            whole = whole[at:]
        if os.path.basename(whole[0]) in REAL:
            return self._really(whole)
        program = self.programs().get(os.path.basename(whole[0]))
        if program is None:
            raise AssertionError(f"unplanned program: {' '.join(whole)}")
        return program(whole)

    def _really(self, argv: tuple[str, ...]) -> RunResult:
        """coreutils do to the folder what they would do as root, for whoever runs the test."""
        mine = [str(os.getuid()) if argv[i - 1] == "-o" else str(os.getgid()) if argv[i - 1] == "-g" else w
                for i, w in enumerate(argv)]  # fmt: skip
        assert all(not w.startswith("/") or w.startswith((str(self.root), "/usr/", "/bin/")) for w in mine), mine
        done = subprocess.run(mine, capture_output=True, text=True, timeout=10)
        return RunResult(argv, done.returncode, done.stdout, done.stderr)

    def manifest(self) -> dict[str, Any]:
        """Everything that belongs to the user: files with bytes, mode and owner, and the models' states."""
        seen: dict[str, Any] = {}
        for folder, folders, files in os.walk(self.files):
            for name in [*folders, *files]:
                path = Path(folder) / name
                state = path.lstat()
                data = path.read_bytes().hex() if path.is_file() and not path.is_symlink() else ""
                seen[str(path.relative_to(self.files))] = (data, state.st_mode, state.st_uid, state.st_gid)
        for path in self.models.glob("*.json"):
            document = json.loads(path.read_text())
            seen[path.name] = {k: v for k, v in document.items() if k != "known"}
        return seen
