"""A whole build with an engine that rejects every argument list that was not planned."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from doctor.errors import DoctorError
from doctor.facts import ContainerFacts, DriverFacts, GpuFacts, SystemFacts, WslFacts
from doctor.finding import Severity, Verdict
from doctor.host.access import LocalHost
from doctor.image import pins, preflight
from doctor.image.build import BuildOptions, BuildResult, run_build
from doctor.image.preflight import GIB
from doctor.report.build_view import as_json, print_build
from doctor.report.console import console
from doctor.snapshot import Snapshot

HERE = Path(__file__).parent
TARGET = pins.load().target("ubuntu24.04")
TAG = pins.tag(TARGET, pins.load().root)
OLD = {"argv": ["--version"], "out": "Docker version 20.10.24+dfsg1, build 297e128\n"}
NEW = {"argv": ["--version"], "out": "Docker version 28.2.2, build e6534b4\n"}
BUILDX = {"argv": ["buildx", "version"], "out": "github.com/docker/buildx v0.24.0 d0e5e86\n"}
PODMAN = {"argv": ["--version"], "out": "podman version 4.3.1\n"}
ID = f"sha256:{'a' * 64}"
INSPECT = {"argv": ["image", "inspect", "vllm-doctor:.*"], "out": json.dumps([{"Id": ID, "Size": 21 * GIB}])}
GOOD = "#4 [system 1/3] FROM x\n#4 DONE 0.0s\n#5 [system 2/3] RUN install-apt\n#5 0.4 Setting up\n#5 DONE 1.0s\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
CONTAINER = ContainerFacts(
    docker_client="/usr/bin/docker",
    daemon_reachable=True,
    daemon_permission_denied=False,
    daemon_version="20.10.24",
    daemon_name="system",
    runtimes=("nvidia", "runc"),
    data_root="/var/lib/docker",
    data_free_bytes=100 * GIB,
    toolkit_version="1.18.0",
    sources={"docker_host": "default socket"},
)
MACHINE = Snapshot(
    system=SystemFacts(arch="x86_64", in_container=False, ram_available_bytes=16 * GIB),
    wsl=WslFacts(version=0),
    driver=DriverFacts(nvml_status="ok", version="580.65.06"),
    gpus=(GpuFacts(0, name="NVIDIA GeForce RTX 3090", compute_capability="8.6"),),
    container=CONTAINER,
)


def arguments(base: str = ".*", target: pins.Target = TARGET) -> list[str]:
    """The build arguments of a target as patterns, in order."""
    values = {
        "BASE": base, "PYTHON": target.python, "PYTHON_LOCK": str(target.python_lock),
        "APT_LOCK": str(target.apt_lock), "VLLM": "0.26.0", "TORCH": "2.11.0", "CUDA": "13.0",
        "LOCK_HASH": "[0-9a-f]{12}", "REVISION": r"[0-9a-f]{40}(-changed)?|v[0-9.]+", "PLAN_ID": "[0-9a-f]{12}",
    }  # fmt: skip
    return [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]


def build_argv(*extra: str, first: Sequence[str] = ("--progress", "plain"), base: str = ".*") -> list[str]:
    file = ("--file", r"(/.*vllm-doctor-build-[^/]+)/docker/Dockerfile", "--target", "runtime")
    return [
        "build",
        *first,
        *file,
        *arguments(base),
        *extra,
        "--tag",
        "vllm-doctor:.*",
        "/.*/vllm-doctor-build-[^/]+",
    ]


@dataclass
class Stand:
    """A PATH with the stand-ins only, and a folder for what is temporary."""

    root: Path
    said: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def engine(self, *plan: dict[str, Any], name: str = "docker") -> str:
        folder = self.root / f"bin-{name}"
        folder.mkdir(exist_ok=True)
        source = (HERE / "stand_in_engine.py").read_text(encoding="utf-8")
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
        path.chmod(0o755)
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        return str(path)

    @property
    def calls(self) -> list[dict[str, Any]]:
        lines = [line for p in sorted(self.root.glob("bin-*/calls.jsonl")) for line in p.read_text().splitlines()]
        return [json.loads(line) for line in lines]

    @property
    def builds(self) -> list[dict[str, Any]]:
        return [c for c in self.calls if c["argv"][0] == "build"]

    @property
    def host(self) -> LocalHost:
        folders = [str(p) for p in sorted(self.root.glob("bin-*"))]
        return LocalHost(env={"PATH": ":".join([*folders, str(self.root / "git")]), **self.env})

    @property
    def left(self) -> list[str]:
        return sorted(p.name for p in (self.root / "tmp").iterdir())

    def build(self, s: Snapshot = MACHINE, **options: Any) -> BuildResult:
        return run_build(BuildOptions(**options), s, self.host, self.said.append, apart_s=0.0)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "git").mkdir()
    git = shutil.which("git")
    if git:
        (tmp_path / "git" / "git").symlink_to(git)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    made = Stand(tmp_path)
    yield made
    assert [c for c in made.calls if c["unplanned"]] == []


def screen(result: BuildResult, **options: Any) -> str:
    import io

    out = io.StringIO()
    print_build(result, out=console(out), **options)
    return out.getvalue()


# ---------------------------------------------------------------- it works


def test_a_build(stand: Stand) -> None:
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, INSPECT)
    result = stand.build()
    assert (result.judgement.verdict, result.findings) == (Verdict.READY, [])
    assert (result.image_id, result.image_bytes) == (ID, 21 * GIB)
    (call,) = stand.builds
    assert call["env"] == {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "LC_ALL": "C"}
    assert {"docker/Dockerfile", "doctor/cli.py", "pyproject.toml", "docker/locks/python-3.12.txt"} <= set(
        call["context"]
    )
    assert f"BASE={pins.load().image('cuda-13.0').pinned}" in call["argv"]
    assert stand.left == []
    assert [t for t in stand.said if t.startswith("step 1")] == ["step 1 of 14, system: FROM x"]
    assert stand.said[-1] == "step 2 of 14: Setting up"
    text = screen(result)
    assert text.startswith("✓ READY  vllm-doctor:0.26.0-cu130-")
    assert "21.0 GiB" in text
    assert f"$ docker run --rm --gpus all {TAG} check" in text
    assert "-p 127.0.0.1:8000:8000" in text


def test_what_a_program_reads(stand: Stand) -> None:
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, INSPECT)
    answer = as_json(stand.build())
    assert answer["image"] == {"tag": TAG, "id": ID, "bytes": 21 * GIB}
    assert answer["plan"]["arguments"]["LOCK_HASH"] == TAG.rpartition("-")[2]
    assert answer["run"]["way"] == "gpus"
    assert answer["run"]["check"] == ["docker", "run", "--rm", "--gpus", "all", TAG, "check"]
    assert (answer["ended"]["code"], answer["ended"]["failed_step"], answer["log"]) == (0, None, None)


def test_with_buildx_the_image_goes_to_the_daemon(stand: Stand) -> None:
    stand.engine(NEW, BUILDX, {"argv": build_argv(first=("--progress", "plain", "--load")), "err": GOOD}, INSPECT)
    result = stand.build()
    assert result.judgement.verdict is Verdict.READY
    assert result.engine is not None
    assert result.engine.builder == "buildx"


def test_podman(stand: Stand) -> None:
    info = {"argv": ["info", "--format", r"\{\{.Store.GraphRoot\}\}"], "out": "/nonexistent\n"}
    build = {"argv": build_argv(first=("--format", "docker")), "out": "STEP 1/3: FROM x\n"}
    stand.engine(PODMAN, info, build, INSPECT, name="podman")
    without_docker = ContainerFacts(docker_client="", podman="/usr/bin/podman", daemon_reachable=False)
    result = stand.build(replace(MACHINE, container=without_docker))
    assert result.judgement.verdict is Verdict.READY
    assert any("room of the engine not known" in n for n in result.notes)
    assert result.lines is not None
    assert result.lines.commands[0][1][:5] == ("podman", "run", "--rm", "--device", "nvidia.com/gpu=all")
    assert "nvidia-ctk cdi generate" in " ".join(result.lines.first)
    assert "DOCKER_BUILDKIT" not in stand.builds[0]["env"]


def test_options_reach_the_engine(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    extra = ["--secret", f"id=ca,src={tmp_path}/ca.pem", "--network", "host", "--no-cache"]
    argv = build_argv(*extra)
    argv[argv.index("--tag") + 1] = "mine:1"
    stand.engine(OLD, {"argv": argv, "out": GOOD}, {**INSPECT, "argv": ["image", "inspect", "mine:1"]})
    result = stand.build(ca=str(tmp_path / "ca.pem"), network="host", no_cache=True, tag="mine:1")
    assert result.judgement.verdict is Verdict.READY


def test_an_own_base_is_asked_for_its_distribution(stand: Stand) -> None:
    release = 'ID=ubuntu\nVERSION_ID="24.04"\n'
    run = ["run", "--rm", "--name", "vllm-doctor-base-[0-9a-f]+", "--network", "none", "--entrypoint", "cat",
           "mine:1", "/etc/os-release"]  # fmt: skip
    stand.engine(OLD, {"argv": run, "out": release}, {"argv": build_argv(base="mine:1"), "out": GOOD}, INSPECT)
    result = stand.build(base="mine:1")
    assert result.plan is not None
    assert (result.plan.target.name, result.judgement.verdict) == ("ubuntu24.04", Verdict.READY)


def test_wheels_travel_with_the_context(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl").write_text("x")
    monkeypatch.setattr("doctor.image.context.locked", lambda _path: (("torch", "2.11.0"),))
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, INSPECT)
    stand.env["PIP_CERT"] = str(tmp_path / "unused.pem")
    (tmp_path / "unused.pem").write_text(CERTIFICATE)
    assert stand.build(wheels=tmp_path / "wheels").judgement.verdict is Verdict.READY
    assert "docker/wheels/torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl" in stand.builds[0]["context"]


def test_bill_of_materials_and_archive_come_after_the_build(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from doctor.image import archive, sbom

    asked: list[tuple[list[str], str]] = []
    wanted = (tmp_path / "image.tar", tmp_path / "bill.json")
    saved = archive.Saved(
        wanted[0], "ab" * 32, 9 * GIB, ID, tmp_path / "image.tar.sha256", tmp_path / "image.tar.cdx.json"
    )

    def of_image(engine: list[str], image: str) -> bytes:
        asked.append((engine, image))
        return b"{}"

    def save(engine: list[str], image: str, path: Path, _say: object) -> archive.Saved:
        asked.append((engine, image))
        assert path == wanted[0]
        return saved

    monkeypatch.setattr(sbom, "of_image", of_image)
    monkeypatch.setattr(archive, "save", save)
    path = stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, INSPECT)
    rootless = "the rootless daemon's socket (the client needs DOCKER_HOST for it)"
    s = with_container(docker_host="unix:///run/user/1000/docker.sock", sources={"docker_host": rootless})
    result = stand.build(s, save=wanted[0], sbom=wanted[1])
    assert asked == [([path, "-H", "unix:///run/user/1000/docker.sock"], TAG)] * 2
    assert stand.builds[0]["env"]["DOCKER_HOST"] == "unix:///run/user/1000/docker.sock"
    assert wanted[1].read_text() == "{}"
    assert as_json(result)["saved"]["sha256"] == "ab" * 32
    text = screen(result)
    assert f"saved: {wanted[0]} (9.0 GiB)" in text
    assert "docker load --input image.tar" in text


# ---------------------------------------------------------------- certificates and proxies


def test_the_bundle_this_machine_trusts_is_handed_on_and_said(stand: Stand, tmp_path: Path) -> None:
    bundle = tmp_path / "company.pem"
    bundle.write_text(CERTIFICATE)
    stand.env["SSL_CERT_FILE"] = str(bundle)
    stand.engine(OLD, {"argv": build_argv("--secret", f"id=ca,src={bundle}"), "out": GOOD}, INSPECT)
    result = stand.build()
    assert any(str(bundle) in n and "$SSL_CERT_FILE" in n and "--ca none" in n for n in result.notes)


def test_no_bundle_when_none_is_wanted_or_the_variable_names_none(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "company.pem").write_text(CERTIFICATE)
    (tmp_path / "empty.pem").write_text("nothing")
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, INSPECT)
    stand.env["PIP_CERT"] = str(tmp_path / "company.pem")
    assert stand.build(ca="none").judgement.verdict is Verdict.READY
    stand.env["PIP_CERT"] = str(tmp_path / "empty.pem")
    assert stand.build().judgement.verdict is Verdict.READY
    with pytest.raises(DoctorError, match="not a readable file with certificates"):
        stand.build(ca=str(tmp_path / "empty.pem"))


def test_proxies_are_named_and_their_values_stay_out_of_the_arguments(stand: Stand) -> None:
    stand.env["HTTPS_PROXY"] = "http://me:secret@127.0.0.1:3128"
    stand.engine(OLD, {"argv": build_argv("--build-arg", "HTTPS_PROXY"), "out": GOOD}, INSPECT)
    result = stand.build()
    assert any("--network host" in n for n in result.notes)
    assert "secret" not in json.dumps([as_json(result), stand.builds])


# ---------------------------------------------------------------- refused before anything is built


def refused(stand: Stand, s: Snapshot, **options: Any) -> BuildResult:
    result = stand.build(s, **options)
    assert result.judgement.verdict is Verdict.BLOCKED
    assert stand.builds == []
    assert stand.left == []
    assert "BLOCKED  nothing was built: " in screen(result).splitlines()[0]
    assert all(f.severity is Severity.BLOCKER for f in result.findings)
    return result


def with_container(**changes: Any) -> Snapshot:
    return replace(MACHINE, container=replace(CONTAINER, **changes))


@pytest.mark.parametrize(
    ("s", "cause", "text"),
    [
        (
            with_container(daemon_reachable=False, daemon_error="unix:///var/run/docker.sock: no such socket"),
            "docker-daemon-unreachable", "no such socket",
        ),
        (
            with_container(daemon_reachable=False, daemon_permission_denied=True, docker_socket_group="docker",
                           daemon_error="permission denied on unix:///var/run/docker.sock"),
            "docker-socket-permission-denied", "group docker",
        ),
        (with_container(daemon_version="19.03.15"), "buildkit-missing", "19.03.15"),
        (with_container(data_free_bytes=5 * GIB), "docker-data-root-full", "/var/lib/docker has 5.0 GiB left"),
        (
            replace(MACHINE, driver=DriverFacts(nvml_status="ok", version="570.172.08")),
            "driver-too-old-for-cuda-build", "580.65.06",
        ),
        (replace(MACHINE, container=None), "docker-daemon-unreachable", "was not heard"),
    ],
)  # fmt: skip
def test_refused(stand: Stand, s: Snapshot, cause: str, text: str) -> None:
    stand.engine(OLD)
    result = refused(stand, s)
    assert [f.id for f in result.findings] == [cause]
    assert text in result.findings[0].summary


def test_inside_a_container_a_missing_daemon_is_said_too(stand: Stand) -> None:
    stand.engine(OLD)
    s = with_container(daemon_reachable=False, daemon_error="unix:///var/run/docker.sock: no such socket")
    inside = replace(s, system=replace(s.system, in_container=True)) if s.system else s
    assert [f.id for f in refused(stand, inside).findings] == ["docker-daemon-unreachable"]


def test_no_engine(stand: Stand) -> None:
    assert [f.id for f in refused(stand, MACHINE).findings] == ["container-engine-missing"]


def test_no_buildx(stand: Stand) -> None:
    stand.engine(NEW, {**BUILDX, "rc": 1, "out": "", "err": "docker: unknown command: docker buildx\n"})
    assert [f.id for f in refused(stand, MACHINE).findings] == ["buildkit-missing"]


def test_little_room_can_be_ignored_and_is_still_said(stand: Stand) -> None:
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, INSPECT)
    result = stand.build(with_container(data_free_bytes=5 * GIB), ignore_room=True)
    assert result.judgement.verdict is Verdict.READY
    assert any("5.0 GiB left" in n and "--ignore-room" in n for n in result.notes)


def test_every_target_has_its_room_on_record() -> None:
    known = [preflight.needs(t) for t in pins.load().targets]
    assert all(n is not None and n.room > 10 * GIB and n.memory > GIB for n in known)
    assert preflight.needs(replace(TARGET, python_lock="docker/locks/my-own.txt")) is None
    assert preflight.needs(replace(TARGET, python_lock=None)) is None


def test_the_room_of_podman_is_looked_at(stand: Stand) -> None:
    info = {"argv": ["info", "--format", r"\{\{.Store.GraphRoot\}\}"], "out": "/proc\n"}  # has no room at all
    stand.engine(PODMAN, info, name="podman")
    result = refused(stand, replace(MACHINE, container=ContainerFacts(docker_client="", daemon_reachable=False)))
    assert [f.id for f in result.findings] == ["docker-data-root-full"]
    assert "/proc has 0.0 GiB left" in result.findings[0].summary


def test_little_memory_is_said_and_not_refused(stand: Stand) -> None:
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, INSPECT)
    assert MACHINE.system is not None
    result = stand.build(replace(MACHINE, system=replace(MACHINE.system, ram_available_bytes=GIB)))
    assert result.judgement.verdict is Verdict.READY
    assert any("1.0 GiB of memory available" in n for n in result.notes)


def test_a_daemon_elsewhere_is_not_judged_by_this_machine(stand: Stand) -> None:
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, INSPECT)
    s = with_container(
        daemon_reachable=None, docker_host="ssh://box", data_free_bytes=None, daemon_version=None,
        daemon_error="not asked: the transport of ssh://box leads elsewhere",
    )  # fmt: skip
    result = stand.build(replace(s, driver=DriverFacts(nvml_status="ok", version="470.1")))
    assert result.judgement.verdict is Verdict.READY
    assert any("another machine (ssh://box)" in n for n in result.notes)


@pytest.mark.parametrize("option", ["sbom", "save"])
def test_a_place_that_cannot_be_written_is_said_first(stand: Stand, tmp_path: Path, option: str) -> None:
    stand.engine(OLD)
    for path, why in ((tmp_path, "that is a folder"), (tmp_path / "none" / "file", "its folder is missing")):
        with pytest.raises(DoctorError, match=why):
            stand.build(**{option: path})
    assert stand.calls == []


# ---------------------------------------------------------------- it fails


def test_a_step_that_fails_is_named_and_the_log_kept(stand: Stand) -> None:
    transcript = (HERE / "data" / "buildkit-20.10-failed.txt").read_text(encoding="utf-8")
    stand.engine(OLD, {"argv": build_argv(), "out": transcript, "rc": 1})
    result = stand.build()
    assert result.judgement.verdict is Verdict.BLOCKED
    assert [f.id for f in result.findings] == ["image-build-failed"]
    assert "b: RUN cat /f && false failed: executor failed running" in result.findings[0].summary
    assert result.log is not None
    assert result.log.read_text(encoding="utf-8") == transcript
    assert stand.left == [result.log.name]
    text = screen(result)
    assert "BLOCKED  the build stopped after" in text
    assert f"log: {result.log}" in text
    assert as_json(result)["ended"]["failed_step"].endswith("b: RUN cat /f && false")


def test_a_known_cause_comes_first(stand: Stand) -> None:
    transcript = (HERE / "data" / "buildkit-20.10-no-registry.txt").read_text(encoding="utf-8")
    stand.engine(OLD, {"argv": build_argv(), "out": transcript, "rc": 1})
    result = stand.build()
    first = result.findings[0]
    assert first.id == "registry-unreachable"
    assert "image-build-failed" in [s.id for s in first.symptoms]
    assert first.blocks


def test_an_image_that_the_engine_does_not_show_is_no_success(stand: Stand) -> None:
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD}, {**INSPECT, "out": "", "rc": 1})
    result = stand.build()
    assert [f.id for f in result.findings] == ["image-build-failed"]
    assert result.judgement.verdict is Verdict.BLOCKED


# ---------------------------------------------------------------- interrupted


def interrupt(stand: Stand, number: int) -> tuple[int, float]:
    """Sends a signal to a doctor whose engine is at work; its exit status and the seconds until then."""
    code = (
        "import sys\n"
        "from doctor.commands import build\n"
        "from tests.image.test_build import MACHINE\n"
        "build._examine = lambda: MACHINE\n"
        "from doctor.cli import main\n"
        "sys.exit(main(['build']))\n"
    )
    env = {**os.environ, **stand.host.env, "TMPDIR": str(stand.root / "tmp"), "PYTHONPATH": str(HERE.parents[1])}
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", *PROXIES):
        env.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not any(c["argv"] == ["sleeping"] for c in stand.calls) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert err.rstrip().endswith("vllm-doctor: interrupted")
    assert out == ""
    return process.returncode, time.monotonic() - began


PROXIES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "FTP_PROXY",
    "ftp_proxy",
)


def gone(stand: Stand) -> bool:
    pid = next(c["pid"] for c in stand.calls if c["argv"] == ["sleeping"])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_build_leaves_nothing(stand: Stand, number: int) -> None:
    stand.engine(OLD, {"argv": build_argv(), "out": GOOD, "sleep": 60})
    code, seconds = interrupt(stand, number)
    assert code == 130
    assert seconds < 15
    assert gone(stand)
    assert stand.calls[-1]["argv"] == ["interrupted"], "the client was asked to end, not killed"
    assert stand.left == []


def test_a_client_that_does_not_listen_is_killed(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    from doctor.image import builder
    from doctor.image.builder import Command
    from doctor.image.steps import Steps

    monkeypatch.setattr(builder, "INTERRUPT_S", 0.5)
    monkeypatch.setattr(builder, "TERMINATE_S", 0.5)
    path = stand.engine({"argv": ["build"], "out": GOOD, "sleep": 60, "deaf": True})

    def say(_text: str) -> None:
        if any(c["argv"] == ["sleeping"] for c in stand.calls):
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        builder.build(Command((path, "build"), {}), os.environ, stand.root / "log", Steps(), say, apart_s=0.0)
    assert time.monotonic() - began < 30
    assert gone(stand)
