"""The bill of materials: from a lock and dpkg's status, valid by CycloneDX's schema, always the same bytes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from doctor import __version__
from doctor.errors import DoctorError
from doctor.image import sbom

REPOSITORY = Path(__file__).resolve().parents[2]
LOCK = """\
--index-url https://pypi.org/simple
# made by uv
torch==2.11.0+cu130 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
Foo.Bar==1.0 ; python_version >= "3.8" \\
    --hash=sha512:{c}  # via torch
never==1.0 ; sys_platform == "win32" --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64, c="c" * 128)
# from dpkg's status file of Debian 12, shortened; vim was removed and its configuration kept
DPKG = """\
Package: g++-12
Status: install ok installed
Priority: optional
Architecture: amd64
Source: gcc-12
Version: 12.2.0-14+deb12u1
Depends: gcc-12-base (= 12.2.0-14+deb12u1),
 libc6 (>= 2.14)
Description: GNU C++ compiler
 Version: 9 of something else

Package: vim
Status: deinstall ok config-files
Architecture: amd64
Version: 2:9.0.1378-2

Package: python3.11
Status: install ok installed
Architecture: all
Version: 1:3.11.2-6
"""
IMAGE = {"vllm": "0.26.0", "torch": "2.11.0", "cuda": "13.0", "lock_hash": "0123456789ab", "plan_id": ""}


def build(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"system": ("debian", "12"), **changes}
    return sbom.document(sbom.read_lock(LOCK, "lock"), sbom.read_dpkg(DPKG), IMAGE, **given)


def component(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in document["components"] if c["name"] == name)


def validated(data: bytes) -> None:
    json_validation = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-python-lib")
    from cyclonedx.schema import SchemaVersion

    assert json_validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None


def test_python_packages_have_name_version_and_every_hash() -> None:
    torch = component(build(), "torch")
    assert torch["purl"] == "pkg:pypi/torch@2.11.0%2Bcu130"
    (reference,) = torch["externalReferences"]
    assert [h["content"] for h in reference["hashes"]] == ["a" * 64, "b" * 64]
    assert component(build(), "Foo.Bar")["purl"] == "pkg:pypi/foo-bar@1.0"
    assert component(build(), "Foo.Bar")["externalReferences"][0]["hashes"][0]["alg"] == "SHA-512"
    assert not [c for c in build()["components"] if c["name"] == "never"]


def test_system_packages_are_those_that_are_installed() -> None:
    document = build()
    purls = [c["purl"] for c in document["components"] if c.get("purl", "").startswith("pkg:deb/")]
    assert purls == [
        "pkg:deb/debian/g%2B%2B-12@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12",
        "pkg:deb/debian/python3.11@1:3.11.2-6?arch=all&distro=debian-12",
    ]
    assert component(document, "g++-12")["version"] == "12.2.0-14+deb12u1"


def test_image_and_doctor_are_described() -> None:
    document = build()
    image = document["metadata"]["component"]
    assert (image["type"], image["version"]) == ("container", "0.26.0-cu130-0123456789ab")
    assert {"name": "vllm-doctor:cuda", "value": "13.0"} in image["properties"]
    assert not [p for p in image["properties"] if p["name"].endswith("plan_id")]
    assert component(document, "vllm-env-doctor")["version"] == __version__


def test_same_content_gives_the_same_bytes_and_another_content_another_serial_number() -> None:
    assert sbom.dump(build()) == sbom.dump(build())
    assert "timestamp" not in build()["metadata"]
    assert build(epoch=0)["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    other = sbom.document((), sbom.read_dpkg(DPKG), IMAGE)
    assert other["serialNumber"] != build()["serialNumber"]


def _installed(folder: Path, name: str, *fields: str) -> importlib.metadata.Distribution:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(("Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *fields)))
    return importlib.metadata.Distribution.at(info)


def test_licence_is_what_the_metadata_declares_and_nothing_else(tmp_path: Path) -> None:
    fields = {
        "a": ["License-Expression: MIT OR Apache-2.0", "License: ignored"],
        "b": ["License: BSD 3-Clause"],
        "c": ["License: " + "the whole text " * 20, "Classifier: License :: OSI Approved :: MIT License"],
        "d": ["License: UNKNOWN"],
    }
    installed = [_installed(tmp_path, name, *lines) for name, lines in fields.items()]
    lock = "".join(f"{name}==1.0\n" for name in fields)
    document = sbom.document(sbom.read_lock(lock, "lock"), (), IMAGE, installed=installed)
    assert component(document, "a")["licenses"] == [
        {"expression": "MIT OR Apache-2.0", "acknowledgement": "declared"}
    ]
    assert component(document, "b")["licenses"][0]["license"]["name"] == "BSD 3-Clause"
    assert component(document, "c")["licenses"][0]["license"]["name"] == "MIT License"
    assert "licenses" not in component(document, "d")
    validated(sbom.dump(document))


def test_licence_of_another_version_is_not_taken(tmp_path: Path) -> None:
    installed = [_installed(tmp_path, "a", "License-Expression: MIT")]
    document = sbom.document(sbom.read_lock("a==2.0\n", "lock"), (), IMAGE, installed=installed)
    assert "licenses" not in component(document, "a")


def test_environment_made_from_the_lock_is_listed_whole(tmp_path: Path) -> None:
    installed = [_installed(tmp_path, name) for name in ("a", "pip")]
    with_pip = sbom.document(sbom.read_lock("a==1.0\n", "lock"), (), IMAGE, installed=installed)
    assert component(with_pip, "pip")["purl"] == "pkg:pypi/pip@1.0"
    elsewhere = sbom.document(sbom.read_lock("a==1.0\nb==1.0\n", "lock"), (), IMAGE, installed=installed)
    assert not [c for c in elsewhere["components"] if c["name"] == "pip"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torch>=2.11 --hash=sha256:" + "a" * 64, "torch is not pinned to one version"),
        ("torch==2.* --hash=sha256:" + "a" * 64, "torch is not pinned to one version"),
        ("torch @ https://example.org/torch.whl", "torch is not pinned to one version"),
        ("torch==2.11.0 --hash=sha256:zz", "torch has a hash that is none: --hash=sha256:zz"),
        ("torch==2.11.0 --hash=crc32:" + "a" * 32, "torch has a hash that is none"),
        ("<html>", "'<html>' is not a requirement"),
    ],
)
def test_lock_that_does_not_pin_is_refused(line: str, said: str) -> None:
    with pytest.raises(DoctorError, match=f"^lock: {said}"):
        sbom.read_lock(line + "\n", "lock")


def _run(tmp_path: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "lock.txt").write_text(LOCK)
    (tmp_path / "status").write_text(DPKG)
    (tmp_path / "image.json").write_text(json.dumps(IMAGE))
    (tmp_path / "os-release").write_text('NAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian\n')
    words = ["--lock", "lock.txt", "--dpkg", "status", "--image", "image.json", "--out", "out.json"]
    return subprocess.run(
        [sys.executable, "-m", "doctor.image.sbom", *words, "--os-release", "os-release", *more],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **env}, capture_output=True, text=True,
    )  # fmt: skip


def test_command_writes_a_valid_document_twice_the_same(tmp_path: Path) -> None:
    assert _run(tmp_path).returncode == 0
    first = (tmp_path / "out.json").read_bytes()
    validated(first)
    assert _run(tmp_path, SOURCE_DATE_EPOCH="").returncode == 0
    assert (tmp_path / "out.json").read_bytes() == first
    assert _run(tmp_path, SOURCE_DATE_EPOCH="1700000000").returncode == 0
    dated = (tmp_path / "out.json").read_bytes()
    validated(dated)
    assert json.loads(dated)["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert not list(tmp_path.glob(".*tmp"))


def test_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    answer = _run(tmp_path, "--dpkg", "absent")
    assert (answer.returncode, answer.stderr) == (3, "sbom: cannot read absent: No such file or directory\n")
    answer = _run(tmp_path, "--out", "no/such/folder.json")
    assert (answer.returncode, answer.stderr) == (
        3,
        "sbom: cannot write no/such/folder.json: No such file or directory\n",
    )
    answer = _run(tmp_path, SOURCE_DATE_EPOCH="today")
    assert answer.stderr == "sbom: SOURCE_DATE_EPOCH 'today' is not a number of seconds\n"


@pytest.mark.parametrize("lock", sorted((REPOSITORY / "docker/locks").glob("python-*.txt")), ids=lambda p: p.stem)
def test_each_lock_of_the_repository_gives_a_valid_document(lock: Path) -> None:
    locked = sbom.read_lock(lock.read_text(), lock.name)
    assert "vllm" in [item.name for item in locked]
    assert not [item.name for item in locked if not item.hashes]
    document = sbom.document(locked, sbom.read_dpkg(DPKG), IMAGE, system=("debian", "12"))
    references = [c["bom-ref"] for c in document["components"]]
    assert len(set(references)) == len(references)
    # the strict validator needs seconds for thousands of hashes: a few packages have all there is to check
    validated(sbom.dump(sbom.document(locked[:10], (), IMAGE)))
