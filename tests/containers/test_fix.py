"""Repairs for real: the check finds, fix repairs, the check is clean, undo restores the whole file system.

The manifest is of every path below the root: bytes, kind, mode, owner. What may differ after the undo is the list
below, each with its reason. A test fails when something else differs.
"""

from __future__ import annotations

import fnmatch
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.containers.harness import CODE, LABEL, NAME, REPOSITORY, Docker, finding_ids

Image = Callable[[str, str], str]
SUITES = ("bookworm", "trixie")

#: Path pattern -> why it may differ after an undo. Nothing else may.
MAY_DIFFER: Mapping[str, str] = {
    "/var/lib/vllm-doctor*": "the journal itself",
    "/var/log/apt/*": "apt's own log",
    "/var/log/dpkg.log": "dpkg's own log",
    "/var/log/alternatives.log": "the log of update-alternatives",
    "/var/lib/dpkg/status-old": "dpkg's copy of the list before its last change",
    "/etc/ld.so.cache": "rebuilt by ldconfig, in an order of its own",
    "/var/cache/apt/*.bin": "apt's cache of its lists, made anew when dpkg's status changes",
    "/var/cache/ldconfig/aux-cache": "ldconfig's cache, with times in it",
}
LONGEST_LIST = 8  # a longer one needs a reason in the review

MANIFEST = r"""
import hashlib, json, os, stat, sys
seen = {}
skip = {"/proc", "/sys", "/dev", "/opt/code", "/run/doctor-test"}
for folder, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if os.path.join(folder, f) not in skip]
    for name in folders + files:
        path = os.path.join(folder, name)
        try:
            s = os.lstat(path)
            if stat.S_ISLNK(s.st_mode): what = "-> " + os.readlink(path)
            elif stat.S_ISREG(s.st_mode):
                what = hashlib.sha256(open(path, "rb").read()).hexdigest()
            else: what = ""
        except OSError as e:
            what = str(e)
        seen[path] = [what, oct(s.st_mode), s.st_uid, s.st_gid]
json.dump(seen, sys.stdout)
"""


@dataclass
class Box:
    """One container that stays up for a test."""

    docker: Docker
    name: str
    env: dict[str, str] = field(default_factory=dict)
    user: str = "root"

    def run(self, *command: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        options = [f"--user={self.user}", *(f"-e{k}={v}" for k, v in self.env.items())]
        return self.docker("exec", *options, self.name, *command, timeout=timeout)

    def must(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
        return done.stdout

    def doctor(self, *arguments: str, code: int | None = None) -> Any:
        done = self.run("vllm-doctor", *arguments, "--json")
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-2000:]}"
        return json.loads(done.stdout)

    def manifest(self) -> dict[str, Any]:
        return dict(json.loads(self.must("python3", "-c", MANIFEST)))


@pytest.fixture
def box(docker: Docker, image: Image) -> Iterator[Callable[..., Box]]:
    """``box(suite, recipe, env={}, docker_args=())``: a container with this checkout's code."""
    made: list[str] = []

    def start(
        suite: str, recipe: str, env: Mapping[str, str] | None = None, docker_args: Sequence[str] = ()
    ) -> Box:
        name = f"{NAME}-{docker.session}-{uuid.uuid4().hex[:8]}"
        mount = ("-v", f"{REPOSITORY / 'doctor'}:{CODE}/doctor:ro")
        argv = ("run", "-d", "--init", "--network=host", "--name", name, "--label", f"{LABEL}={docker.session}")
        done = docker(*argv, *mount, *docker_args, image(suite, recipe), "sleep", "infinity")
        assert done.returncode == 0, done.stderr
        made.append(name)
        return Box(docker, name, dict(env or {}))

    yield start
    for name in made:
        docker("rm", "-f", name)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Paths that differ and may not. Of a folder that is listed only the folder's own line counts."""
    paths = [p for p in {*before, *after} if before.get(p) != after.get(p)]
    left = [p for p in paths if not any(fnmatch.fnmatch(p, pattern) for pattern in MAY_DIFFER)]
    return {p: (before.get(p), after.get(p)) for p in sorted(left)}


def refresh(box: Box) -> None:
    done = box.run("apt-get", "-qq", "update")
    if done.returncode != 0:
        pytest.skip(f"no package registry: {done.stderr.strip()[-200:]}")


def repaired_and_undone(box: Box, cause: str, changed: Sequence[str]) -> None:
    """The whole way, and back."""
    before = box.manifest()
    assert cause in finding_ids(box.doctor("check"), folded=False)
    plan = box.doctor("fix", "--only", cause, code=0)["plan"]
    assert [a["for"] for a in plan["actions"] if not a["manual"]], plan
    assert differences(before, box.manifest()) == {}, "a plan changes nothing"
    applied = box.doctor("fix", "--only", cause, "--apply", "--yes", code=0)
    assert applied["run"]["status"] == "applied"
    assert applied["run"]["after"]["fixed"] == [cause]
    assert applied["run"]["after"]["still_there"] == applied["run"]["after"]["new"] == []
    clean = box.doctor("check")
    assert cause in clean["passed"], [s for s in clean["skipped"] if s["id"] == cause]
    repaired = box.manifest()
    for path in changed:
        assert repaired.get(path) != before.get(path), path
    again = box.doctor("fix", "--only", cause, "--apply", "--yes", code=0)
    assert again["run"]["status"] == "nothing"
    assert differences(repaired, box.manifest()) == {}
    undone = box.doctor("undo", "--yes", code=0)
    assert (undone["complete"], undone["problems"]) == (True, [])
    assert differences(before, box.manifest()) == {}
    assert cause in finding_ids(box.doctor("check"), folded=False)
    assert box.doctor("history")["runs"][-1]["status"] == "undone"


def test_the_list_of_exceptions_has_not_grown() -> None:
    assert len(MAY_DIFFER) <= LONGEST_LIST
    assert all(MAY_DIFFER.values())
    assert not any(p in ("/*", "/etc/*", "/var/*", "/usr/*", "*") for p in MAY_DIFFER)


@pytest.mark.parametrize("suite", SUITES)
def test_gxx_12_missing(box: Callable[..., Box], suite: str) -> None:
    it = box(suite, "gcc12", {"CC": "gcc-12"})
    refresh(it)
    repaired_and_undone(it, "gxx12-missing", ["/usr/bin/g++-12", "/var/lib/dpkg/status"])


@pytest.mark.parametrize("suite", SUITES)
def test_python_headers_missing(box: Callable[..., Box], suite: str) -> None:
    it = box(suite, "gcc")
    refresh(it)
    repaired_and_undone(it, "python-headers-missing", ["/var/lib/dpkg/status"])


@pytest.mark.parametrize("suite", SUITES)
def test_no_compiler(box: Callable[..., Box], suite: str) -> None:
    it = box(suite, "doctor")
    refresh(it)
    repaired_and_undone(it, "c-compiler-missing", ["/usr/bin/gcc", "/usr/bin/g++"])


@pytest.mark.parametrize("suite", SUITES)
def test_daemon_json_broken(box: Callable[..., Box], suite: str) -> None:
    it = box(suite, "doctor")
    text = '{\n  "log-driver": "journald", // ours\n  "dns": ["10.0.0.1",],\n}\n'
    it.must("mkdir", "-p", "/etc/docker")
    it.must("sh", "-c", f"printf '%s' '{text}' > /etc/docker/daemon.json; chmod 640 /etc/docker/daemon.json")
    repaired_and_undone(it, "docker-daemon-json-invalid", ["/etc/docker/daemon.json"])
    it.doctor("fix", "--only", "docker-daemon-json-invalid", "--apply", "--yes", code=0)
    kept = json.loads(it.must("cat", "/etc/docker/daemon.json"))
    assert kept == {"log-driver": "journald", "dns": ["10.0.0.1"]}


@pytest.mark.parametrize("suite", SUITES)
def test_daemon_json_with_other_keys(box: Callable[..., Box], suite: str) -> None:
    code = Path(__file__).parent / "stand_in_docker.py"
    it = box(suite, "doctor", docker_args=("-v", f"{code}:/opt/stand_in_docker.py:ro"))
    text = '{\n  "log-driver": "journald",\n  "dns": ["10.0.0.1"],\n  "default-runtime": "nvidia"\n}\n'
    it.must("mkdir", "-p", "/etc/docker")
    it.must("sh", "-c", f"printf '%s' '{text}' > /etc/docker/daemon.json; chmod 640 /etc/docker/daemon.json")
    it.must("python3", "/opt/stand_in_docker.py", "install")
    it.docker("exec", "-d", it.name, "python3", "/opt/stand_in_docker.py", "serve")
    it.must("sh", "-c", "for i in $(seq 50); do [ -S /var/run/docker.sock ] && exit 0; sleep 0.1; done; exit 1")
    repaired_and_undone(it, "container-runtime-not-registered", ["/etc/docker/daemon.json"])
    it.doctor("fix", "--only", "container-runtime-not-registered", "--apply", "--yes", code=0)
    document = json.loads(it.must("cat", "/etc/docker/daemon.json"))
    assert document["runtimes"] == {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
    assert {k: document[k] for k in json.loads(text)} == json.loads(text)


@pytest.mark.parametrize("suite", SUITES)
def test_stale_flashqla_lock(box: Callable[..., Box], suite: str) -> None:
    it = box(suite, "doctor", {"HOME": "/root"})
    folder = "/root/.cache/torch_extensions/py312_cu128/flash_qla_gdr"
    it.must("mkdir", "-p", folder)
    it.must("touch", "-d", "2 hours ago", f"{folder}/lock")
    repaired_and_undone(it, "flashqla-stale-build-lock", [f"{folder}/lock"])


def test_an_edited_file_survives_undo(box: Callable[..., Box]) -> None:
    it = box("bookworm", "doctor")
    it.must("sh", "-c", "mkdir -p /etc/docker; printf '{\"dns\": [],}' > /etc/docker/daemon.json")
    it.doctor("fix", "--only", "docker-daemon-json-invalid", "--apply", "--yes", code=0)
    it.must("sh", "-c", 'printf \'{"dns": ["1.1.1.1"]}\' > /etc/docker/daemon.json')
    undone = it.doctor("undo", "--yes", code=5)
    assert it.must("cat", "/etc/docker/daemon.json") == '{"dns": ["1.1.1.1"]}'
    why = undone["problems"][0]["why"]
    assert "/etc/docker/daemon.json was changed since" in why
    assert it.must("cat", why.rpartition("the original is in ")[2]) == '{"dns": [],}'


def test_without_yes_nothing_changes(box: Callable[..., Box]) -> None:
    it = box("bookworm", "doctor")
    it.must("sh", "-c", "mkdir -p /etc/docker; printf '{\"dns\": [],}' > /etc/docker/daemon.json")
    before = it.manifest()
    done = it.run("vllm-doctor", "fix", "--only", "docker-daemon-json-invalid", "--apply")
    assert (done.returncode, "--yes is needed" in done.stderr) == (3, True)
    assert it.manifest() == before


def test_a_saved_plan_is_refused_when_the_facts_have_changed(box: Callable[..., Box]) -> None:
    it = box("bookworm", "doctor")
    it.must("sh", "-c", "mkdir -p /etc/docker; printf '{\"dns\": [],}' > /etc/docker/daemon.json")
    it.doctor("fix", "--only", "docker-daemon-json-invalid", "--save", "/tmp/plan.json", code=0)
    it.must("sh", "-c", 'printf \'{"dns": [], "debug": true,}\' > /etc/docker/daemon.json')
    done = it.run("vllm-doctor", "fix", "--apply", "--yes", "--plan", "/tmp/plan.json")
    assert (done.returncode, "the facts have changed" in done.stderr) == (3, True)
    it.must("sh", "-c", "printf '{\"dns\": [],}' > /etc/docker/daemon.json")
    assert it.doctor("fix", "--apply", "--yes", "--plan", "/tmp/plan.json", code=0)["run"]["status"] == "applied"


# ------------------------------------------------------------------ as a user


@pytest.fixture
def user_box(box: Callable[..., Box]) -> Callable[[str], Box]:
    """``user_box(rule)``: gcc-12 without g++-12, a user ann, and a sudoers rule for her ("" for none)."""

    def start(rule: str) -> Box:
        it = box("bookworm", "gcc12", {"CC": "gcc-12", "HOME": "/home/ann", "USER": "ann"})
        refresh(it)
        it.must("apt-get", "-qq", "install", "-y", "--no-install-recommends", "sudo")
        it.must("useradd", "-m", "ann")
        if rule:
            it.must("sh", "-c", f"echo '{rule}' > /etc/sudoers.d/ann; chmod 440 /etc/sudoers.d/ann")
        it.user = "ann"
        return it

    return start


def test_a_user_with_sudo(user_box: Callable[[str], Box]) -> None:
    it = user_box("ann ALL=(ALL) NOPASSWD: ALL")
    plan = it.doctor("fix", "--only", "gxx12-missing", code=0)["plan"]
    shown = plan["actions"][-1]["commands"][0]
    assert shown[:5] == ["/usr/bin/sudo", "-n", "--", "/usr/bin/env", "-i"]
    it.doctor("fix", "--only", "gxx12-missing", "--apply", "--yes", code=0)
    assert "gxx12-missing" in it.doctor("check")["passed"]
    assert "/home/ann/.local/state/vllm-doctor/runs" in it.must("find", "/home/ann/.local/state", "-name", "runs")
    it.doctor("undo", "--yes", code=0)
    assert it.run("test", "-e", "/usr/bin/g++-12").returncode == 1


def test_a_user_whom_sudo_refuses(user_box: Callable[[str], Box]) -> None:
    it = user_box("")
    answer = it.doctor("fix", "--only", "gxx12-missing", "--apply", "--yes", code=4)
    assert "root is needed" in answer["run"]["why"]
    assert it.doctor("history")["runs"] == []


# ------------------------------------------------------------------ trouble for real


def test_no_network(box: Callable[..., Box]) -> None:
    it = box(
        "bookworm",
        "gcc12",
        {"CC": "gcc-12", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
    )
    before = it.manifest()
    answer = it.doctor("fix", "--only", "gxx12-missing", "--apply", "--yes", code=4)
    assert answer["run"]["status"] == "rolled-back"
    left = {
        p for p in differences(before, it.manifest()) if not p.startswith(("/var/lib/apt/lists", "/var/cache/apt"))
    }
    assert left == set()


def test_dpkg_lock_held(box: Callable[..., Box]) -> None:
    it = box("bookworm", "gcc12", {"CC": "gcc-12"})
    refresh(it)
    hold = (
        "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "time.sleep(300)"
    )
    it.docker("exec", "-d", it.name, "python3", "-c", hold)
    before = it.manifest()
    answer = it.doctor("fix", "--only", "gxx12-missing", "--apply", "--yes", code=4)
    assert "dpkg frontend lock" in answer["run"]["why"] or "Could not get lock" in answer["run"]["why"]
    assert differences(before, it.manifest()) == {}


def test_a_full_disk_for_the_journal(box: Callable[..., Box]) -> None:
    it = box("bookworm", "doctor", docker_args=("--tmpfs", "/var/lib/vllm-doctor:size=4k,mode=700"))
    it.must("sh", "-c", "mkdir -p /etc/docker; printf '{\"dns\": [],}' > /etc/docker/daemon.json")
    it.run("sh", "-c", "head -c 4096 /dev/zero > /var/lib/vllm-doctor/filler")
    before = it.manifest()
    done = it.run("vllm-doctor", "fix", "--only", "docker-daemon-json-invalid", "--apply", "--yes")
    assert done.returncode in (3, 4), done.stderr
    assert differences(before, it.manifest()) == {}


def test_a_read_only_etc(box: Callable[..., Box], tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text('{"dns": [],}')
    it = box("bookworm", "doctor", docker_args=("-v", f"{tmp_path}:/etc/docker:ro"))
    before = it.manifest()
    answer = it.doctor("fix", "--only", "docker-daemon-json-invalid", "--apply", "--yes", code=4)
    assert "read-only" in answer["run"]["why"]
    assert differences(before, it.manifest()) == {}


def test_killed_while_apt_works(box: Callable[..., Box]) -> None:
    """SIGKILL in the middle of an installation: the next run says so, undo restores."""
    it = box("bookworm", "gcc12", {"CC": "gcc-12"})
    refresh(it)
    before = it.manifest()
    script = (
        "vllm-doctor fix --only gxx12-missing --apply --yes >/dev/null 2>&1 & p=$!; "
        "for i in $(seq 1200); do grep -q ' status unpacked lib' /var/log/dpkg.log && break; sleep 0.05; done; "
        "kill -9 $p; wait $p; echo killed $?"
    )
    it.must("sh", "-c", ": > /var/log/dpkg.log")
    assert "killed 137" in it.must("sh", "-c", script)
    run = it.doctor("history")["runs"][-1]
    assert (run["status"], run["unfinished"]) == ("half-done", True)
    said = it.run("vllm-doctor", "fix", "--only", "gxx12-missing")
    assert "was cut off" in said.stdout
    assert f"vllm-doctor undo {run['id']}" in said.stdout
    assert it.doctor("undo", "--yes", code=0)["complete"]
    assert differences(before, it.manifest()) == {}
