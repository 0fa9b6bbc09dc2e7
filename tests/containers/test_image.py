"""The pinned image, built by the product on a real daemon and run the ways people run it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers import images
from tests.containers.harness import REPOSITORY, Docker, Unavailable


@pytest.fixture(scope="session")
def answer(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the build said; the image is removed at the end."""
    tag = f"{images.NAME}:{uuid.uuid4().hex[:12]}"
    try:
        yield images.build(docker, tmp_path_factory.mktemp("image"), tag) | {"tag": tag}
    except Unavailable as why:
        pytest.skip(str(why))
    docker("rmi", "-f", tag)


@pytest.fixture(scope="session")
def built(answer: dict[str, Any]) -> str:
    """The tag of the image."""
    return str(answer["tag"])


def check_json(docker: Docker, image: str, *docker_args: str) -> dict[str, Any]:
    done = images.run(docker, image, "check", "--json", docker_args=docker_args)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "docker_args",
    [
        (),
        ("--read-only", "--tmpfs", "/tmp"),
        ("--network", "none"),
        ("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        ("--read-only", "--tmpfs", "/tmp", "--network", "none", "--cap-drop", "ALL"),
        ("--user", "4242:4242", "--cap-drop", "ALL"),
        ("--user", "4242:4242", "--read-only", "--network", "none"),
    ],
    ids=lambda args: " ".join(args) or "plain",
)
def test_without_a_gpu(docker: Docker, built: str, docker_args: tuple[str, ...]) -> None:
    """It says that no GPU reached the container, and how to pass one."""
    found = check_json(docker, built, *docker_args)
    blockers = [f for f in found["findings"] if f["severity"] == "blocker" and f["confidence"] != "hint"]
    first = next(f for f in blockers if f["id"] == "container-gpu-not-exposed")
    assert first["confidence"] == "proven"
    commands = [word for fix in first["fixes"] for argv in fix["commands"] for word in argv]
    assert "--gpus" in commands


def test_no_argument_is_check_then_smoke(docker: Docker, built: str) -> None:
    """A blocked check ends it: the smoke test would start a server that cannot run."""
    done = images.run(docker, built)
    assert done.returncode == 2, done
    assert "container-gpu-not-exposed" in done.stdout
    assert "smoke" not in done.stdout


def test_who_it_runs_as(docker: Docker, built: str) -> None:
    done = images.run(docker, built, "shell", "-c", "id -u; touch /opt/venv/x; touch /cache/x && echo cache")
    assert done.stdout.split() == ["1000", "cache"]
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [(("bogus",), "no command is called 'bogus'"), (("serve",), "serve needs a model")],
)
def test_misuse(docker: Docker, built: str, args: tuple[str, ...], said: str) -> None:
    done = images.run(docker, built, *args)
    assert done.returncode == 3
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_labels_facts_and_bill_of_materials(docker: Docker, built: str, answer: dict[str, Any]) -> None:
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", built).stdout)
    facts = json.loads(images.run(docker, built, "shell", "-c", "cat /opt/vllm-doctor/image.json").stdout)
    assert labels["io.vllm-doctor.lock"] == facts["lock_hash"]
    assert re.fullmatch("[0-9a-f]{12}", facts["lock_hash"])
    assert (labels["io.vllm-doctor.vllm"], labels["io.vllm-doctor.cuda"]) == (facts["vllm"], facts["cuda"])
    assert labels["io.vllm-doctor.plan"] == facts["plan_id"] != ""
    bom = json.loads(images.run(docker, built, "shell", "-c", "cat /opt/vllm-doctor/sbom.cdx.json").stdout)
    listed = {(c["name"], c["version"]) for c in bom["components"]}
    dpkg = images.run(docker, built, "shell", "-c", "dpkg-query -W -f '${Package} ${Version}\\n'").stdout
    assert {tuple(line.split()) for line in dpkg.splitlines()} <= listed
    pip = images.run(docker, built, "shell", "-c", "/opt/venv/bin/pip list --format json").stdout
    installed = {(p["name"].lower(), p["version"]) for p in json.loads(pip) if p["name"] != "pip"}
    assert installed <= {(name.lower(), version) for name, version in listed}


def test_exactly_what_the_locks_say(docker: Docker, built: str) -> None:
    """Every package that the base lacked has the version of the lock."""
    lock = (REPOSITORY / "docker/locks/apt-debian-12.txt").read_text().splitlines()
    wanted = {line.split()[0] for line in lock if not line.startswith("#")}
    dpkg = images.run(docker, built, "shell", "-c", "dpkg-query -W -f '${Package}=${Version}\\n'").stdout.split()
    assert wanted <= set(dpkg)
    base = docker("run", "--rm", docker.base("bookworm"), "dpkg-query", "-W", "-f", "${Package}=${Version}\\n")
    assert set(dpkg) - set(base.stdout.split()) == wanted


def test_content(docker: Docker, built: str) -> None:
    """No caches, no credentials, nobody's files, no setuid file that the base does not have."""

    def rows_of(image: str) -> list[list[str]]:
        """mode, user, group, type, path, link of every path."""
        text = images.listing(docker, image)
        return [line.split(" ", 6)[1:] for line in text.splitlines() if line.startswith("M ")]

    rows, base = rows_of(built), rows_of(docker.base("bookworm"))
    assert len(rows) > len(base) > 1000
    special = {r[4] for r in rows if r[3] == "f" and len(r[0]) == 4}
    assert special <= {r[4] for r in base if r[3] == "f" and len(r[0]) == 4}, "setuid, setgid"
    users = images.run(docker, built, "shell", "-c", "cut -d: -f3 /etc/passwd").stdout.split()
    assert {r[1] for r in rows} <= set(users)
    theirs = {r[4] for r in rows if r[1] == "1000"}
    assert all(p.startswith(("./home/doctor", "./cache")) for p in theirs), theirs
    groups = images.run(docker, built, "shell", "-c", "cut -d: -f3 /etc/group").stdout.split()
    assert {r[2] for r in rows} <= set(groups)
    files = {r[4] for r in rows if r[3] == "f"} - {r[4] for r in base}
    unwanted = (
        r"/var/cache/apt/|/var/lib/apt/lists/.*_|\.deb$|\.whl$|/root/\.|/\.cache/|/tmp/|/run/secrets/."
        r"|\.netrc|\.pypirc|id_rsa|/\.git/|\.pem$|pip\.conf|^\./src/"
    )
    # certificates of public authorities, and the wheels that Debian's venv brings
    allowed = r"/etc/ssl/certs/|/usr/share/ca-certificates/|/certifi/cacert\.pem|/usr/share/python-wheels/"
    assert sorted(f for f in files if re.search(unwanted, f) and not re.search(allowed, f)) == []
    search = (
        "grep -rIlE 'hf_[A-Za-z0-9]{30}|BEGIN [A-Z ]*PRIVATE KEY' /opt /home /etc /root /var /usr/local || true"
    )
    as_root = ("--user", "0", "--entrypoint", "sh")
    secrets = images.run(docker, built, "-c", search, docker_args=as_root).stdout.split()
    # the redactor and the libraries know what a key looks like
    assert [path for path in secrets if "/site-packages/" not in path] == []
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", built).stdout
    assert not re.search(r"token|password|BEGIN CERT", history, re.IGNORECASE)


def test_built_again_it_is_the_same(docker: Docker, built: str, tmp_path: Path) -> None:
    """Without any cached layer: the same packages, files, modes and owners."""
    again = f"{images.NAME}:again-{uuid.uuid4().hex[:8]}"
    images.build(docker, tmp_path, again, "bookworm", "--no-cache")
    try:
        first, second = images.listing(docker, built), images.listing(docker, again)
    finally:
        docker("rmi", "-f", again)
    differing = {line.rsplit(" ", 1)[-1] for line in set(first.splitlines()) ^ set(second.splitlines())}
    assert differing == set()


@pytest.fixture(scope="session")
def wheels(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of the doctor's lock for the base's Python."""
    folder = tmp_path_factory.mktemp("wheels")
    lock = REPOSITORY / "docker/locks/doctor-3.11.txt"
    tags = [f"--platform=manylinux_2_{n}_x86_64" for n in (5, 12, 17, 28)] + ["--platform=manylinux2014_x86_64"]
    argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    argv += ["--python-version=3.11", "--implementation=cp", *tags, "-d", str(folder), "-r", str(lock)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180)
    if done.returncode:
        pytest.skip(f"the wheels cannot be fetched: {done.stderr[-300:]}")
    return folder


def test_a_changed_wheel_stops_the_build(docker: Docker, wheels: Path, tmp_path: Path, built: str) -> None:
    changed = tmp_path / "wheels"
    shutil.copytree(wheels, changed)
    wheel = next(changed.glob("idna-*.whl"))
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.write_bytes(data)
    copy = images.checkout(docker, tmp_path / "copy")
    tag = f"{images.NAME}:changed"
    done = copy.build("--base", docker.base("bookworm"), "--tag", tag, "--wheels", str(changed))
    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)["findings"][0]
    assert found["severity"] == "blocker"
    assert found["id"] == "package-hash-mismatch"
    assert "idna" in json.dumps(found)
    assert docker("image", "inspect", tag).returncode != 0, "no image of it"


def test_wheels_without_an_index(docker: Docker, wheels: Path, tmp_path: Path, built: str) -> None:
    """A machine that reaches no index builds from a folder."""
    copy = images.checkout(docker, tmp_path / "copy")
    tag = f"{images.NAME}:offline"
    done = copy.build("--base", docker.base("bookworm"), "--tag", tag, "--wheels", str(wheels))
    assert done.returncode == 0, done.stderr
    docker("rmi", "-f", tag)


def test_another_hash_of_a_system_package_stops_the_build(docker: Docker, tmp_path: Path, built: str) -> None:
    copy = images.checkout(docker, tmp_path / "copy")
    lock = copy.root / "docker/locks/apt-debian-12.txt"
    lock.write_text(re.sub(r"(?m)^(tini=\S+ \S+) [0-9a-f]{64}$", r"\1 " + "0" * 64, lock.read_text()))
    done = copy.build("--base", docker.base("bookworm"), "--tag", f"{images.NAME}:changed")
    assert done.returncode == 2, done.stderr
    assert "tini=" in done.stdout
    assert "is not in apt-debian-12.txt" in done.stdout


def test_a_wrong_digest_stops_the_build(docker: Docker, tmp_path: Path, built: str) -> None:
    copy = images.checkout(docker, tmp_path / "copy")
    base = f"{docker.base('bookworm')}@sha256:{'0' * 64}"
    done = copy.build("--base", base, "--target", "bookworm", "--tag", f"{images.NAME}:digest")
    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)["findings"]
    assert found, done.stdout
    assert "Traceback" not in done.stderr


def test_an_image_that_would_not_work_is_not_made(docker: Docker, tmp_path: Path, built: str) -> None:
    """The lock names one package more than is installed: the proof stage finds it."""
    copy = images.checkout(docker, tmp_path / "copy")
    file = copy.root / "docker/Dockerfile"
    text = file.read_text()
    assert "    rm -rf /src /tmp/wheel" in text
    uninstall = "    /opt/venv/bin/pip uninstall -q -y idna; rm -rf /src /tmp/wheel"
    file.write_text(text.replace("    rm -rf /src /tmp/wheel", uninstall))
    tag = f"{images.NAME}:broken"
    done = copy.build("--base", docker.base("bookworm"), "--tag", tag)
    assert done.returncode == 2, done.stderr
    assert "idna" in done.stdout
    assert docker("image", "inspect", tag).returncode != 0, "no image of it"
