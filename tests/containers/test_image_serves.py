"""The image with a real vLLM inside, the CPU build: smoke is ready, and `docker stop` ends it in time.

The CPU build and the tiny model of tests/server are mounted over the image of the doctor alone: the vLLM of the
image needs a GPU to start at all.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers import images
from tests.containers.harness import LABEL, Docker, Unavailable
from tests.server.conftest import tiny_model, vllm_env  # noqa: F401  fixtures

pytestmark = pytest.mark.server

PYTHON = "3.11"  # of bookworm's image; compiled packages of the CPU build must be for the same
#: Seconds that `docker stop` waits before it kills.
STOP_S = 10.0


@pytest.fixture(scope="session")
def image(docker: Docker, vllm_env: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: F811
    """The image of the doctor alone with a second environment, filled by a mount."""
    if not (vllm_env / "lib" / f"python{PYTHON}").is_dir():
        pytest.skip(f"the CPU vLLM in {vllm_env} is not for Python {PYTHON}")
    plain = f"{images.NAME}:{uuid.uuid4().hex[:12]}"
    tag = f"{images.NAME}:cpu-{uuid.uuid4().hex[:12]}"
    try:
        images.build(docker, tmp_path_factory.mktemp("image"), plain)
    except Unavailable as why:
        pytest.skip(str(why))
    script = "#!/opt/cpu/bin/python\\nimport sys\\nfrom vllm.entrypoints.cli.main import main\\n"
    script += 'if __name__ == \\"__main__\\":\\n    sys.exit(main())\\n'
    recipe = (
        f"FROM {plain}\nUSER root\n"
        "RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends libnuma1\n"
        f"RUN python{PYTHON} -m venv --without-pip /opt/cpu "
        f'&& printf "{script}" >/opt/cpu/bin/vllm && chmod 755 /opt/cpu/bin/vllm\n'
        "ENV PATH=/opt/cpu/bin:$PATH VIRTUAL_ENV=/opt/cpu\nUSER doctor\n"
    )
    made = docker("build", "-t", tag, "-", stdin=recipe.encode(), timeout=120)
    assert made.returncode == 0, made.stderr
    yield tag
    docker("rmi", "-f", tag, plain)


@pytest.fixture
def mounts(vllm_env: Path, tiny_model: Path) -> tuple[str, ...]:  # noqa: F811
    """Without a network, as a plain user, nothing of the image writable."""
    site = vllm_env / "lib" / f"python{PYTHON}" / "site-packages"
    libraries = vllm_env / "opt"
    return (
        "-v", f"{site}:/opt/cpu/lib/python{PYTHON}/site-packages:ro", "-v", f"{libraries}:{libraries}:ro",
        "-v", f"{tiny_model}:/models/tiny:ro",
        "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--shm-size", "1g",
        "-e", "VLLM_CPU_KVCACHE_SPACE=1",
    )  # fmt: skip


def test_the_smoke_test_in_a_container_is_ready(docker: Docker, image: str, mounts: tuple[str, ...]) -> None:
    done = images.run(docker, image, "smoke", "--model", "/models/tiny", "--json", docker_args=mounts, timeout=420)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    failed = [p for p in answer["smoke"]["probes"] if p["status"] == "fail"]
    assert (done.returncode, answer["verdict"], failed) == (0, "ready", []), (
        answer["findings"],
        done.stderr[-2000:],
    )
    assert answer["smoke"]["server"]["device"] == "cpu"
    assert answer["smoke"]["settings_that_passed"]["num_speculative_tokens"] == 2


@pytest.fixture
def started(docker: Docker) -> Iterator[str]:
    """A name for a container, which is removed at the end."""
    name = f"vllm-doctor-test-{uuid.uuid4().hex[:10]}"
    yield name
    docker("rm", "-f", "-v", name)


def start(docker: Docker, name: str, docker_args: tuple[str, ...], image: str, *args: str) -> None:
    done = docker("run", "-d", "--name", name, "--label", LABEL, *docker_args, image, *args)
    assert done.returncode == 0, done.stderr


def wait_for(docker: Docker, name: str, words: str, seconds: float) -> None:
    """Until the container's output has the words."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        logs = docker("logs", name)
        if words in logs.stdout + logs.stderr:
            return
        running = docker("inspect", "--format", "{{.State.Running}}", name).stdout.strip()
        assert running == "true", logs.stdout[-2000:] + logs.stderr[-2000:]
        time.sleep(1)
    raise AssertionError(f"no {words!r} after {seconds:g} s: {docker('logs', name).stderr[-2000:]}")


def stop(docker: Docker, name: str) -> tuple[float, int]:
    """Seconds that `docker stop` took, and the exit status: 137 means that it was killed."""
    began = time.monotonic()
    assert docker("stop", "--time", f"{STOP_S:g}", name).returncode == 0
    took = time.monotonic() - began
    return took, int(docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout)


@pytest.mark.long
def test_stop_ends_serve(docker: Docker, image: str, mounts: tuple[str, ...], started: str) -> None:
    """In the middle of its life; its health check has gone green before."""
    quick = ("--health-interval", "2s", "--health-start-period", "1s", "--health-retries", "100")
    start(
        docker, started, (*mounts, *quick), image, "serve", "/models/tiny", "--max-model-len", "1024",
        "--enforce-eager",
    )  # fmt: skip
    wait_for(docker, started, "Application startup complete", 240)
    end = time.monotonic() + 30
    state = ""
    while state != "healthy" and time.monotonic() < end:
        time.sleep(1)
        state = docker("inspect", "--format", "{{.State.Health.Status}}", started).stdout.strip()
    assert state == "healthy"
    took, code = stop(docker, started)
    assert took < STOP_S
    assert code in (0, 143), code


@pytest.mark.long
@pytest.mark.parametrize("moment", ["starting the server", "asking"])
def test_stop_ends_smoke(docker: Docker, image: str, mounts: tuple[str, ...], started: str, moment: str) -> None:
    """While it starts its server, and while it asks it: the server goes with it."""
    start(docker, started, mounts, image, "smoke", "--model", "/models/tiny")
    words = {"starting the server": "smoke test:", "asking": "first requests"}[moment]
    wait_for(docker, started, words, 300)
    time.sleep(3)
    took, code = stop(docker, started)
    assert took < STOP_S, docker("logs", started).stderr[-1000:]
    assert code == 130, docker("logs", started).stderr[-1000:]
