"""Checks of the area container and of parallel sizes, from what the probes read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doctor.checks.registry import Judgement, judge, registered
from doctor.facts import ContainerFacts, DriverFacts, GpuFacts, PythonFacts, ServingFacts, SystemFacts, WslFacts
from doctor.finding import Confidence, Finding, Severity, Verdict
from doctor.host import container as container_probe
from doctor.host.examine import Options
from doctor.snapshot import Snapshot, dumps, loads
from tests.fakes import FakeHost
from tests.host.fake_docker import docker

WORKING = DriverFacts(nvml_status="ok", version="580.159.03", libcuda="/usr/lib/libcuda.so.1",
                      libcuda_is_stub=False, device_nodes=("/dev/nvidia0", "/dev/nvidiactl"))  # fmt: skip
GPU = GpuFacts(index=0, name="NVIDIA GeForce RTX 2080 Ti")
HOST = Snapshot(system=SystemFacts(in_container=False, systemd=True), wsl=WslFacts(version=0), driver=WORKING,
                gpus=(GPU,))  # fmt: skip
#: As the probes read it in docker containers without a GPU grant (see tests/containers).
NO_LIBRARY = DriverFacts(nvml_status="LibraryNotFound", nvml_error_code=12, libcuda="", libnvidia_ml="",
                         device_nodes=(), nvidia_smi="", libcuda_is_stub=None)  # fmt: skip
AS_USER = DriverFacts(nvml_status="DriverNotLoaded", nvml_error_code=9, libcuda="", device_nodes=(),
                      libnvidia_ml="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", nvidia_smi_exit=9)  # fmt: skip
AS_ROOT = replace(AS_USER, nvml_status="Unknown", nvml_error_code=999, nvidia_smi_exit=255,
                  device_nodes=("/dev/nvidiactl",), device_nodes_denied=("/dev/nvidiactl",))  # fmt: skip


def inside(driver: DriverFacts | None, kind: str = "docker", **more: Any) -> Snapshot:
    system = SystemFacts(in_container=True, container_kind=kind, shm_total_bytes=8 << 30)
    return Snapshot(system=system, wsl=WslFacts(version=0), driver=driver, **more)


def run(snapshot: Snapshot, *only: str) -> Judgement:
    """Judges, through a saved file: checks must not depend on anything that is lost there."""
    return judge(loads(dumps(snapshot)), registered(), only=only)


def one(snapshot: Snapshot, cause: str) -> Finding:
    judgement = run(snapshot, cause)
    assert [f.id for f in judgement.findings] == [cause], judgement.skipped
    return judgement.findings[0]


def silent(snapshot: Snapshot, cause: str) -> None:
    judgement = run(snapshot, cause)
    assert judgement.findings == ()
    assert judgement.passed == (cause,), judgement.skipped


def skipped(snapshot: Snapshot, cause: str) -> str:
    judgement = run(snapshot, cause)
    assert judgement.findings == ()
    assert [s.id for s in judgement.skipped] == [cause]
    assert "the check itself failed" not in judgement.skipped[0].why
    return judgement.skipped[0].why


class TestGpuNotExposed:
    ID = "container-gpu-not-exposed"

    @pytest.mark.parametrize(
        ("driver", "says"),
        [(NO_LIBRARY, "NVML library is missing"), (AS_USER, "no driver (9)"), (AS_ROOT, "Unknown (999)")],
    )
    def test_each_face_of_it_is_a_proven_blocker_with_its_own_evidence(
        self, driver: DriverFacts, says: str
    ) -> None:
        finding = one(inside(driver), self.ID)
        assert (finding.severity, finding.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
        assert says in finding.summary
        assert driver.nvml_status in [e.value for e in finding.evidence]

    def test_driver_causes_are_folded_below_it(self) -> None:
        judgement = run(inside(NO_LIBRARY))
        blockers = [f.id for f in judgement.findings if f.area == "driver" and f.severity is Severity.BLOCKER]
        assert blockers == []
        assert judgement.verdict is Verdict.BLOCKED

    def test_the_hosts_missing_driver_comes_first(self) -> None:
        finding = one(inside(replace(NO_LIBRARY, module_loaded=False)), self.ID)
        assert "runs no nvidia module" in finding.summary
        assert finding.fixes[0].summary.startswith("On the host, first")

    def test_a_library_baked_into_the_image_makes_it_likely(self) -> None:
        driver = replace(AS_USER, libcuda="/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03")
        assert one(inside(driver), self.ID).confidence is Confidence.LIKELY

    @pytest.mark.parametrize(
        ("kind", "words"),
        [("docker", "--gpus all"), ("podman", "nvidia.com/gpu=all"), ("kubernetes", "nvidia.com/gpu: 1")],
    )
    def test_the_remedy_is_the_engines_own(self, kind: str, words: str) -> None:
        finding = one(inside(NO_LIBRARY, kind), self.ID)
        first = finding.fixes[0]
        assert words in first.summary + " ".join(" ".join(c) for c in first.commands)

    def test_wsl2_asks_for_dxg(self) -> None:
        wsl = WslFacts(version=2, dxg=False)
        assert "/dev/dxg" in one(replace(inside(NO_LIBRARY), wsl=wsl), self.ID).summary
        granted = replace(inside(replace(NO_LIBRARY, nvml_status="Unknown")), wsl=WslFacts(version=2, dxg=True))
        silent(granted, self.ID)

    def test_silent_with_a_gpu_and_on_a_host(self) -> None:
        silent(inside(WORKING), self.ID)
        silent(inside(replace(AS_ROOT, device_nodes=("/dev/nvidia0", "/dev/nvidiactl"))), self.ID)
        silent(replace(HOST, driver=NO_LIBRARY, gpus=None), self.ID)

    def test_unknown_is_skipped(self) -> None:
        assert "not looked at" in skipped(inside(None), self.ID)
        assert "not known" in skipped(inside(DriverFacts(nvml_status="Unknown")), self.ID)
        assert "no GPU is expected" in skipped(replace(inside(NO_LIBRARY), inside_image=True), self.ID)
        assert "not known" in skipped(replace(inside(NO_LIBRARY), system=SystemFacts()), self.ID)


class TestGpuLost:
    ID = "container-gpu-lost-after-daemon-reload"
    LOST = replace(AS_ROOT, libcuda="/usr/lib/libcuda.so.1", device_nodes=("/dev/nvidia0", "/dev/nvidiactl"))

    def test_the_node_is_there_and_refused(self) -> None:
        denied = replace(self.LOST, device_nodes_denied=("/dev/nvidia0", "/dev/nvidiactl"))
        assert one(inside(denied), self.ID).confidence is Confidence.LIKELY
        assert one(inside(replace(self.LOST, device_nodes_denied=())), self.ID).confidence is Confidence.HINT

    def test_silent_where_no_gpu_was_ever_given_or_it_works(self) -> None:
        silent(inside(AS_ROOT), self.ID)
        silent(inside(WORKING), self.ID)

    def test_a_host_where_it_can_happen_gets_a_note(self, tmp_path: Path) -> None:
        nvidia = {"runc": {}, "nvidia": {}}
        host = fake(tmp_path)
        host.write("/dev/nvidiactl", "")
        host.program("/usr/bin/nvidia-container-runtime-hook")
        finding = one(engine(host, Runtimes=nvidia, CgroupDriver="systemd"), self.ID)
        assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.HINT)
        silent(engine(host, Runtimes=nvidia, CgroupDriver="cgroupfs"), self.ID)
        host.write("/dev/char/195:255", "")
        silent(engine(host, Runtimes=nvidia, CgroupDriver="systemd"), self.ID)


class TestStub:
    ID = "libcuda-stub-shadows-driver"

    def test_the_stubs_folder_on_the_loader_path(self) -> None:
        path = "/usr/local/cuda/lib64/stubs:/usr/local/cuda/lib64"
        driver = replace(WORKING, libcuda="/usr/local/cuda/lib64/stubs/libcuda.so", libcuda_is_stub=True)
        finding = one(replace(HOST, driver=driver, python=PythonFacts(env={"LD_LIBRARY_PATH": path})), self.ID)
        assert finding.confidence is Confidence.PROVEN
        assert finding.fixes[0].summary.endswith("export LD_LIBRARY_PATH=/usr/local/cuda/lib64")

    def test_the_last_folder_is_unset(self) -> None:
        driver = replace(WORKING, libcuda="/x/stubs/libcuda.so", libcuda_is_stub=True)
        python = PythonFacts(env={"LD_LIBRARY_PATH": "/x/stubs:"})
        finding = one(replace(HOST, driver=driver, python=python), self.ID)
        assert finding.fixes[0].summary.endswith("unset LD_LIBRARY_PATH")

    def test_silent_or_skipped(self) -> None:
        silent(HOST, self.ID)
        silent(replace(HOST, driver=NO_LIBRARY), self.ID)
        skipped(replace(HOST, driver=replace(WORKING, libcuda_is_stub=None)), self.ID)


class TestSharedMemory:
    ID = "shm-too-small"

    def small(self, **more: Any) -> Snapshot:
        system = SystemFacts(in_container=True, shm_total_bytes=64 << 20, shm_free_bytes=64 << 20)
        return Snapshot(system=system, driver=WORKING, **more)

    def test_it_blocks_only_several_workers(self) -> None:
        finding = one(self.small(serving=ServingFacts(tensor_parallel=2)), self.ID)
        assert (finding.severity, finding.confidence) == (Severity.BLOCKER, Confidence.LIKELY)
        assert one(self.small(serving=ServingFacts(env={"TP_SIZE": "2"})), self.ID).severity is Severity.BLOCKER
        two = self.small(gpus=(GPU, replace(GPU, index=1)))
        assert one(two, self.ID).severity is Severity.DEGRADES
        alone = one(self.small(gpus=(GPU,)), self.ID)
        assert (alone.severity, alone.confidence) == (Severity.NOTE, Confidence.HINT)

    def test_silent(self) -> None:
        silent(inside(WORKING), self.ID)
        silent(replace(self.small(), system=SystemFacts(in_container=False, shm_total_bytes=64 << 20)), self.ID)
        skipped(replace(self.small(), system=SystemFacts(in_container=True)), self.ID)


def fake(root: Path) -> FakeHost:
    host = FakeHost(root, env={"DOCKER_HOST": "unix:///d.sock", "HOME": "/home/u"})
    host.program("/usr/bin/docker", "Docker version 28.2.2, build e6534b4\n")
    return host


def probed(host: FakeHost) -> ContainerFacts:
    return container_probe.probe(host, Options())["container"]  # type: ignore[no-any-return]


def engine(host: FakeHost, **info: Any) -> Snapshot:
    """A working GPU host as the probe sees it while a daemon answers with these changes."""
    path = Path(host.local_path("/d.sock"))
    path.unlink(missing_ok=True)
    with docker(path, **info):
        return replace(HOST, container=probed(host))


class TestToolkit:
    ID = "container-toolkit-missing"

    def test_a_note_on_a_host_that_can_serve_natively(self, tmp_path: Path) -> None:
        snapshot = engine(fake(tmp_path))
        finding = one(snapshot, self.ID)
        assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.PROVEN)

    def test_no_claim_without_a_working_driver(self, tmp_path: Path) -> None:
        snapshot = replace(engine(fake(tmp_path)), driver=NO_LIBRARY)
        assert "no working GPU driver" in skipped(snapshot, self.ID)

    def test_silent_with_the_toolkit_or_cdi(self, tmp_path: Path) -> None:
        silent(engine(fake(tmp_path), Runtimes={"nvidia": {}, "runc": {}}), self.ID)
        found = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]
        silent(engine(fake(tmp_path), CDISpecDirs=["/etc/cdi"], DiscoveredDevices=found), self.ID)
        host = fake(tmp_path)
        host.program("/usr/bin/nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.17.8\n")
        silent(engine(host), self.ID)

    def test_docker_desktop_and_no_docker_are_skipped(self, tmp_path: Path) -> None:
        assert "Desktop" in skipped(engine(fake(tmp_path), OperatingSystem="Docker Desktop"), self.ID)
        none = replace(HOST, container=probed(FakeHost(tmp_path / "empty")))
        for cause in (self.ID, "container-runtime-not-registered", "docker-daemon-unreachable",
                      "docker-socket-permission-denied", "docker-data-root-full"):  # fmt: skip
            assert "not installed" in skipped(none, cause)

    def test_the_daemons_own_refusal(self, tmp_path: Path) -> None:
        says = 'debian:12 with --gpus all: could not select device driver "" with capabilities: [[gpu]]'
        snapshot = deep(engine(fake(tmp_path)), says)
        judgement = run(snapshot)
        finding = next(f for f in judgement.findings if f.id == self.ID)
        assert (finding.severity, finding.confidence) == (Severity.DEGRADES, Confidence.PROVEN)
        assert [f.id for f in finding.symptoms] == ["gpu-container-fails"]

    def test_the_words_of_docker_29(self, tmp_path: Path) -> None:
        """They stand for a missing specification too: only without any toolkit do they mean the toolkit."""
        says = "debian:12 with --gpus all: failed to discover GPU vendor from CDI: no known GPU vendor found"
        assert one(deep(engine(fake(tmp_path / "a")), says), self.ID).confidence is Confidence.PROVEN
        host = fake(tmp_path / "b")
        host.program("/usr/bin/nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.18.0\n")
        found = [f.id for f in run(deep(engine(host), says)).findings]
        assert self.ID not in found
        assert "gpu-container-fails" in found


def deep(snapshot: Snapshot, output: str | None, ok: bool | None = False) -> Snapshot:
    assert snapshot.container is not None
    return replace(
        snapshot, container=replace(snapshot.container, gpu_container_ok=ok, gpu_container_output=output)
    )


class TestRealStart:
    NEWER = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver"
    EXISTS = "nvidia-container-cli: mount error: file creation failed: /x/libnvidia-ml.so.1: file exists: unknown"

    @pytest.mark.parametrize(
        ("output", "cause"),
        [
            (NEWER, "container-image-requires-newer-driver"),
            (EXISTS, "container-image-bundles-driver-libs"),
            ("exit 1: something else", "gpu-container-fails"),
        ],
    )
    def test_the_message_names_the_cause(self, tmp_path: Path, output: str, cause: str) -> None:
        snapshot = engine(fake(tmp_path), Runtimes={"nvidia": {}})
        finding = one(deep(snapshot, output), cause)
        assert (finding.severity, finding.confidence) == (Severity.DEGRADES, Confidence.PROVEN)
        silent(deep(snapshot, "exit 0: GPU 0", ok=True), cause)
        skipped(snapshot, cause)


class TestRuntime:
    ID = "container-runtime-not-registered"

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ('{"default-runtime": "nvidia"}', "defines no such runtime"),
            ('{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}', "does not list it"),
        ],
    )
    def test_a_file_and_a_daemon_that_disagree(self, tmp_path: Path, text: str, says: str) -> None:
        host = fake(tmp_path)
        host.write("/etc/docker/daemon.json", text)
        finding = one(engine(host), self.ID)
        assert (finding.severity, finding.confidence) == (Severity.DEGRADES, Confidence.LIKELY)
        assert says in finding.summary

    def test_installed_and_not_registered_is_a_hint(self, tmp_path: Path) -> None:
        host = fake(tmp_path)
        host.program("/usr/bin/nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.17.8\n")
        finding = one(engine(host), self.ID)
        assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.HINT)
        assert finding.fixes[0].commands[0][-1] == "--dry-run"

    def test_silent(self, tmp_path: Path) -> None:
        silent(engine(fake(tmp_path)), self.ID)
        silent(engine(fake(tmp_path), Runtimes={"nvidia": {}, "runc": {}}), self.ID)


class TestDaemon:
    def test_down(self, tmp_path: Path) -> None:
        finding = one(replace(HOST, container=probed(fake(tmp_path))), "docker-daemon-unreachable")
        assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.PROVEN)
        assert finding.fixes[0].commands == (("sudo", "systemctl", "start", "docker"),)
        assert "DOCKER_HOST" in finding.summary
        silent(engine(fake(tmp_path)), "docker-daemon-unreachable")

    def test_down_under_wsl_and_without_systemd(self, tmp_path: Path) -> None:
        down = replace(HOST, container=probed(fake(tmp_path)))
        desktop = one(replace(down, wsl=WslFacts(version=2)), "docker-daemon-unreachable")
        assert "WSL integration" in desktop.fixes[0].summary
        plain = one(
            replace(down, system=SystemFacts(in_container=False, systemd=False)), "docker-daemon-unreachable"
        )
        assert plain.fixes[0].commands == (("sudo", "service", "docker", "start"),)

    def test_another_machine_is_skipped(self, tmp_path: Path) -> None:
        host = FakeHost(tmp_path, env={"DOCKER_HOST": "ssh://gpu-box"})
        for cause in ("docker-daemon-unreachable", "docker-socket-permission-denied"):
            assert "not asked" in skipped(replace(HOST, container=probed(host)), cause)

    def test_denied(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        host = fake(tmp_path)
        host.write("/etc/group", f"docker:x:{tmp_path.stat().st_gid}:\n")

        def refuse(self: object, path: str) -> None:
            raise PermissionError(13, "Permission denied")

        with docker(tmp_path / "d.sock"), monkeypatch.context() as patch:
            patch.setattr("socket.socket.connect", refuse)
            snapshot = replace(HOST, container=probed(host))
        finding = one(snapshot, "docker-socket-permission-denied")
        assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.PROVEN)
        assert "usermod -aG docker" in finding.fixes[0].summary
        silent(snapshot, "docker-daemon-unreachable")
        (tmp_path / "d.sock").unlink(missing_ok=True)
        silent(engine(fake(tmp_path)), "docker-socket-permission-denied")

    def test_nothing_about_docker_inside_a_container(self, tmp_path: Path) -> None:
        snapshot = replace(inside(WORKING), container=probed(fake(tmp_path)))
        assert "inside a container" in skipped(snapshot, "docker-daemon-unreachable")

    def test_daemon_json(self, tmp_path: Path) -> None:
        host = fake(tmp_path)
        silent(engine(host), "docker-daemon-json-invalid")
        host.write("/etc/docker/daemon.json", '{"runtimes": {},}')
        finding = one(engine(host), "docker-daemon-json-invalid")
        assert (finding.severity, finding.confidence) == (Severity.DEGRADES, Confidence.PROVEN)
        assert "/etc/docker/daemon.json" in finding.summary
        host.write("/etc/docker/daemon.json", "{}")
        silent(engine(host), "docker-daemon-json-invalid")

    def test_room(self, tmp_path: Path) -> None:
        snapshot = engine(fake(tmp_path))
        assert snapshot.container is not None

        def left(gib: float) -> Snapshot:
            c = replace(snapshot.container, data_free_bytes=int(gib * (1 << 30)))  # type: ignore[type-var]
            return replace(snapshot, container=c)

        full, tight = one(left(0.5), "docker-data-root-full"), one(left(12), "docker-data-root-full")
        assert (full.severity, full.confidence) == (Severity.DEGRADES, Confidence.PROVEN)
        assert (tight.severity, tight.confidence) == (Severity.NOTE, Confidence.HINT)
        silent(left(100), "docker-data-root-full")
