"""Files that are not what they should be: no exception, no hang, and no finding that is not true."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doctor.host import cgroup, clock, listeners, model_files, mounts, network, system, wsl_config
from doctor.host.examine import PROBES, Options, examine
from doctor.snapshot import Snapshot, dumps, loads
from tests.checks.judging import OURS, judged
from tests.fakes import FakeHost
from tests.host import linux_hosts
from tests.host.test_storage import model

#: Every file that the four probes read.
FILES = (
    "/etc/os-release",
    "/etc/group",
    "/etc/passwd",
    "/etc/wsl.conf",
    "/home/ana/.cache/huggingface/token",
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/mnt/c/Users/Ana Lima/.wslconfig",
    "/models/q/config.json",
    "/models/q/model-00001-of-00002.safetensors",
    "/models/q/model.safetensors.index.json",
    "/proc/1/cgroup",
    "/proc/1/comm",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/net/tcp",
    "/proc/self/cgroup",
    "/proc/self/exe",
    "/proc/self/limits",
    "/proc/self/mountinfo",
    "/proc/self/status",
    "/proc/sys/fs/binfmt_misc/WSLInterop",
    "/proc/sys/kernel/arch",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/vm/overcommit_memory",
    "/proc/uptime",
    "/proc/version",
    "/run/systemd/container",
    "/sys/class/rtc/rtc0/since_epoch",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
    "/sys/fs/cgroup/user.slice/memory.max",
    "/var/lib/dpkg/status",
)
OPTIONS = Options(model="/models/q")

#: Causes that a whole machine with one odd file must not be blamed for. What an odd file may really mean is
#: left out: a model folder whose config or weights are odd is rightly found fault with.
FALSE = (
    "host-memory-oom-killed", "mmap-overcommit-refused", "glibc-too-old", "clock-wrong", "cpu-governor-powersave",
    "wsl1-no-gpu", "wsl2-kernel-outdated", "wsl2-windows-without-gpu-support", "wsl2-linux-driver-installed",
    "wsl2-libcuda-not-on-loader-path", "disk-full", "mount-not-answering", "flashqla-stale-build-lock",
    "hub-name-resolution-failed", "port-in-use",
)  # fmt: skip


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: "")


def machine(root: Path) -> FakeHost:
    host = linux_hosts.wsl2(root)
    model(host)
    return host


def look(host: FakeHost) -> Snapshot:
    seen = examine(host, OPTIONS, tuple(p for p in PROBES if p.name in OURS))
    assert [(p.name, p.status) for p in seen.probes] == [(name, "ok") for name in OURS]
    return loads(dumps(seen))


def blamed(seen: Snapshot) -> list[str]:
    return [
        cause for cause in FALSE if any(f.blocks or f.confidence != "hint" for f in judged(cause, seen).findings)
    ]


def replace(host: FakeHost, path: str, kind: str) -> None:
    place = host._path(path)
    if os.path.isdir(place):
        shutil.rmtree(place)
    elif os.path.lexists(place):
        os.unlink(place)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        os.makedirs(place + "/inside")
    elif kind == "loop":
        os.symlink(place, place)
    elif kind == "huge":
        with open(place, "wb") as file:
            file.truncate(100 << 20)
    elif kind != "missing":
        contents = {
            "empty": b"",
            "nul": bytes(300),
            "junk": bytes(range(256)) * 8,
            "words": b"999999999999999999999999999999 ::: -- [ = \xff\xfe\n" * 20,
            "long line": b"x" * 3_000_000,
        }
        Path(place).write_bytes(contents[kind])


KINDS = ("missing", "empty", "nul", "junk", "words", "long line", "folder", "fifo", "loop", "huge")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> FakeHost:
    """One machine for many tests; each puts back what it broke."""
    return machine(tmp_path_factory.mktemp("machine"))


def put_back(host: FakeHost, path: str, whole: bytes | None) -> None:
    replace(host, path, "missing")
    if whole is not None:
        host.write(path, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_in_turn(shared: FakeHost, kind: str) -> None:
    for path in FILES:
        whole = shared.read_bytes(path)
        replace(shared, path, kind)
        began = time.monotonic()
        seen = look(shared)
        assert time.monotonic() - began < 2.5, (path, kind)
        assert blamed(seen) == [], (path, kind)
        put_back(shared, path, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_all_files_at_once(tmp_path: Path, kind: str) -> None:
    host = machine(tmp_path)
    for path in FILES:
        replace(host, path, kind)
    seen = look(host)
    assert blamed(seen) == []
    assert seen.wsl is None or seen.wsl.version != 1


@pytest.mark.parametrize("path", FILES)
def test_cut_off_anywhere(shared: FakeHost, path: str) -> None:
    whole = shared.read_bytes(path)
    for length in sorted({len(whole or b"") * i // 4 for i in range(4)}):
        shared.write(path, (whole or b"")[:length])
        assert blamed(look(shared)) == [], (path, length)
    put_back(shared, path, whole)


text = st.text(max_size=400) | st.binary(max_size=400).map(lambda b: b.decode("utf-8", "replace"))
numbers = st.text(alphabet="0123456789-. ,:/\nkBmax", max_size=80)


@settings(max_examples=300, deadline=None)
@given(text | numbers)
def test_parsers_take_any_text(some: str) -> None:
    mounts.parse(some)
    mounts.parse(f"1 2 0:3 {some} / rw - ext4 {some} rw")
    system.os_release(some)
    wsl_config.sections(some)
    listeners.program(some, some.split(" "))
    listeners._listening(some, 8000)
    network.without_credentials(some)
    cgroup._membership(some)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_text_for_windows_files(data: bytes) -> None:
    wsl_config.sections(wsl_config.text_of(data))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=text | numbers, path=st.sampled_from(FILES))
def test_any_text_in_any_file(tmp_path: Path, content: str, path: str) -> None:
    host = FakeHost(
        tmp_path / "any", env={"HOME": "/home/ana"}, programs={"ldconfig": content, "getconf": content}
    )
    host.write(path, content.encode("utf-8", "surrogatepass"))
    seen = look(host)
    for name in OURS:
        facts = getattr(seen, name)
        assert not [s for s in facts.sources if s.startswith("!")], facts.sources


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.binary(max_size=200), length=st.integers(0, 2**64 - 1))
def test_any_safetensors_header(tmp_path: Path, header: bytes, length: int) -> None:
    host = FakeHost(tmp_path / "any")
    host.write("/m/model.safetensors", length.to_bytes(8, "little") + header)
    host.write("/m/config.json", header)
    found = model_files.facts(host, "/m", "/hub")
    assert found["model_exists"].value is True


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=numbers)
def test_any_hardware_clock(tmp_path: Path, value: str) -> None:
    host = FakeHost(tmp_path / "any")
    host.write(clock.RTC, value)
    clock.clock_skew(host)
