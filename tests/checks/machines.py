"""Snapshots of fake hosts for the tests of compilers and nvcc."""

from __future__ import annotations

from collections.abc import Sequence

from doctor.checks.registry import judge
from doctor.facts import GpuFacts, SystemFacts
from doctor.finding import Finding
from doctor.host import python_env, toolchain
from doctor.host.examine import Options
from doctor.snapshot import Snapshot, dumps, loads
from tests import toolchains as tc
from tests.fakes import FakeHost

UBUNTU = SystemFacts(
    os_id="ubuntu", os_version="24.04", glibc="2.39", uid=1000, ram_total_bytes=16 * 10**9, cpu_count=16
)
TURING = GpuFacts(0, name="NVIDIA GeForce RTX 2080 Ti", compute_capability="7.5")
AMPERE = GpuFacts(0, name="NVIDIA GeForce RTX 3090", compute_capability="8.6")
BLACKWELL = GpuFacts(0, name="NVIDIA GeForce RTX 5090", compute_capability="12.0")
SITE = "/opt/venv/lib/python3.12/site-packages"
FORK = 'PROJECT_NAME="vLLM-2080Ti-Definitive"\nFORK_RELEASE="{0}"\n'


def snapshot(
    host: FakeHost, *, system: SystemFacts = UBUNTU, gpus: Sequence[GpuFacts] = (), deep: bool = False
) -> Snapshot:
    options = Options(deep=deep)
    facts = {**toolchain.probe(host, options), **python_env.probe(host, options)}
    # through JSON, as a saved snapshot is judged
    return loads(dumps(Snapshot(system=system, gpus=tuple(gpus), **facts)))


def judged(s: Snapshot, cause: str) -> Finding | str | None:
    """The finding, why it was skipped, or None when it passed."""
    result = judge(s, only=[cause])
    if result.findings:
        return result.findings[0]
    if result.skipped:
        return result.skipped[0].why
    assert result.passed == (cause,)
    return None


def finding(s: Snapshot, cause: str) -> Finding:
    result = judged(s, cause)
    assert isinstance(result, Finding), result
    return result


def with_flashinfer(host: FakeHost, *, vllm: str = "0.26.0", torch: str = "2.11.0+cu130") -> None:
    """What makes vLLM compile FlashInfer's sampler at the first start."""
    tc.add_vllm(host, SITE, vllm)
    tc.add_torch(host, SITE, torch)
    tc.add_dist(host, SITE, "flashinfer-python", "0.6.14")


def with_fork(host: FakeHost, release: str = "0.1.17", torch: str = "2.11.0+cu128") -> None:
    folder = tc.add_dist(host, SITE, "vllm", "0.21.0")
    host.write(f"{folder}/direct_url.json", '{"url": "file:///srv/fork", "dir_info": {"editable": true}}')
    host.write("/srv/fork/PROJECT_RELEASE.env", FORK.format(release))
    tc.add_torch(host, SITE, torch)
