"""The bill of materials of an image, as CycloneDX 1.6 JSON: every Python and system package in it.

    python -m doctor.image.sbom --lock LOCK --dpkg /var/lib/dpkg/status --image image.json --out FILE

The same packages give the same bytes: the serial number follows from the content, and there is a time stamp only
when SOURCE_DATE_EPOCH gives one. A licence is listed only when the installed package's own metadata declares it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from doctor import __version__
from doctor.errors import DoctorError
from doctor.files import write

#: Where an image has its own.
EMBEDDED = "/opt/vllm-doctor/sbom.cdx.json"
SPEC_VERSION = "1.6"
_ALGORITHMS = {"md5": "MD5", "sha1": "SHA-1", "sha256": "SHA-256", "sha384": "SHA-384", "sha512": "SHA-512"}
_IMAGE_REF = "image"
#: Seconds for one call of the engine; none of them moves more than the file.
_ENGINE_DEADLINE_S = 60.0
_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Locked:
    """One line of a lock: ``hashes`` of all files that may be installed for it, as (algorithm, hex digits)."""

    name: str
    version: str
    hashes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Deb:
    """One installed package of dpkg's status file."""

    name: str
    version: str
    architecture: str


def read_lock(text: str, where: str) -> tuple[Locked, ...]:
    """The packages of a requirements file with hashes; DoctorError for a line that is not pinned."""
    found: dict[str, Locked] = {}
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).strip()
        if not words or words.startswith("-"):  # options such as --index-url
            continue
        written, *options = re.split(r"\s--", words)
        try:
            requirement = Requirement(written.strip())
        except InvalidRequirement:
            raise DoctorError(f"{where}: {written.strip()[:100]!r} is not a requirement") from None
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        pins = [s.version for s in requirement.specifier if s.operator in ("==", "===")]
        if len(pins) != 1 or len(requirement.specifier) != 1 or pins[0].endswith(".*"):
            raise DoctorError(f"{where}: {requirement.name} is not pinned to one version with ==")
        hashes = tuple(sorted(_hash(o, requirement.name, where) for o in options if o.startswith("hash")))
        found[canonicalize_name(requirement.name)] = Locked(requirement.name, pins[0], hashes)
    return tuple(found[name] for name in sorted(found))


def _hash(option: str, name: str, where: str) -> tuple[str, str]:
    match = re.fullmatch(r"hash[=\s]+(\w+):([0-9a-f]{32,128})\s*", option)
    if not match or match[1] not in _ALGORITHMS:
        raise DoctorError(f"{where}: {name} has a hash that is none: --{option.strip()[:100]}")
    return _ALGORITHMS[match[1]], match[2]


def read_dpkg(text: str) -> tuple[Deb, ...]:
    """The packages of a dpkg status file that are installed now."""
    found = set()
    for paragraph in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): *(.*?) *$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= set(fields):
            found.add((fields["Package"], fields["Version"], fields.get("Architecture", "all")))
    return tuple(Deb(*entry) for entry in sorted(found))


def document(
    locked: Sequence[Locked],
    debs: Sequence[Deb],
    image: Mapping[str, str],
    *,
    system: tuple[str, str] = ("debian", ""),
    installed: Iterable[importlib.metadata.Distribution] = (),
    epoch: int | None = None,
) -> dict[str, Any]:
    """The whole document.

    ``image``: what image.json says. ``system``: ID and VERSION_ID of os-release. ``installed``: distributions
    whose metadata may know a licence; when every locked one is among them, the others are listed too (pip).
    """
    present = {canonicalize_name(d.metadata["Name"]): d for d in installed if d.metadata["Name"]}
    components = [_python(item, present.get(canonicalize_name(item.name))) for item in locked]
    names = {canonicalize_name(item.name): item.version for item in locked}
    if all(name in present and present[name].version == version for name, version in names.items()):
        extra = sorted(set(present) - set(names) - {"vllm-env-doctor"})
        components += [_python(Locked(n, present[n].version, ()), present[n]) for n in extra]
    components += [_deb(item, system) for item in debs]
    if system[1]:
        components.append(
            {"type": "operating-system", "bom-ref": "os", "name": system[0], "version": system[1]},
        )
    doctor = {"type": "application", "name": "vllm-env-doctor", "version": __version__}
    components.append({**doctor, "bom-ref": "doctor", "licenses": _declared("expression", "Apache-2.0")})
    metadata = {
        **(
            {}
            if epoch is None
            else {"timestamp": f"{datetime.fromtimestamp(epoch, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"}
        ),
        "tools": {"components": [doctor]},
        "component": _image(image),
    }
    body = {
        "metadata": metadata,
        "components": components,
        "dependencies": [{"ref": _IMAGE_REF, "dependsOn": [c["bom-ref"] for c in components]}],
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        **body,
    }


def _image(image: Mapping[str, str]) -> dict[str, Any]:
    component: dict[str, Any] = {"type": "container", "bom-ref": _IMAGE_REF, "name": "vllm-doctor"}
    if all(image.get(key) for key in ("vllm", "cuda", "lock_hash")):
        component["version"] = f"{image['vllm']}-cu{image['cuda'].replace('.', '')}-{image['lock_hash']}"
    component["properties"] = [
        {"name": f"vllm-doctor:{key}", "value": value} for key, value in sorted(image.items()) if value
    ]
    return component


def _python(item: Locked, known: importlib.metadata.Distribution | None) -> dict[str, Any]:
    name = canonicalize_name(item.name)
    purl = f"pkg:pypi/{name}@{quote(item.version, safe='')}"
    component: dict[str, Any] = {
        "type": "library", "bom-ref": purl, "name": item.name, "version": item.version, "purl": purl,
    }  # fmt: skip
    if known is not None and known.version == item.version and (licences := _licences(known)):
        component["licenses"] = licences
    if item.hashes:
        # of all files that may have been installed: so they belong to the distribution, not to the component
        component["externalReferences"] = [
            {
                "type": "distribution",
                "url": f"https://pypi.org/simple/{name}/",
                "hashes": [{"alg": algorithm, "content": digits} for algorithm, digits in item.hashes],
            }
        ]
    return component


def _deb(item: Deb, system: tuple[str, str]) -> dict[str, Any]:
    distro = f"&distro={quote('-'.join(system), safe='')}" if system[1] else ""
    purl = f"pkg:deb/{system[0]}/{quote(item.name, safe='')}@{quote(item.version, safe=':')}"
    purl += f"?arch={item.architecture}{distro}"
    return {"type": "library", "bom-ref": purl, "name": item.name, "version": item.version, "purl": purl}


def _declared(kind: str, text: str) -> list[dict[str, Any]]:
    if kind == "expression":
        return [{"expression": text, "acknowledgement": "declared"}]
    return [{"license": {"name": text, "acknowledgement": "declared"}}]


def _licences(known: importlib.metadata.Distribution) -> list[dict[str, Any]]:
    fields = known.metadata
    if "License-Expression" in fields:
        return _declared("expression", fields["License-Expression"].strip())
    text = fields["License"].strip() if "License" in fields else ""
    if text and text != "UNKNOWN" and len(text) <= 100 and "\n" not in text:  # some put the whole text there
        return _declared("name", text)
    classifiers = [c.split(" :: ")[-1] for c in fields.get_all("Classifier") or [] if c.startswith("License ::")]
    return [entry for name in sorted(set(classifiers)) for entry in _declared("name", name)]


def dump(value: Mapping[str, Any]) -> bytes:
    """The document's bytes."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def of_image(engine: Sequence[str], image: str) -> bytes:
    """The document inside an image, as it is there. ``engine`` is ("docker",) or ("podman",), with options.

    Nothing of the image is run. DoctorError when the image has none.
    """
    from doctor.host.access import LocalHost, RunResult

    host = LocalHost()

    def call(*words: str) -> RunResult:
        return host.run([*engine, *words], timeout=_ENGINE_DEADLINE_S)

    made = call("create", "--pull=never", image)
    if not made.ok:
        raise DoctorError(f"cannot look into {image}: {_said(made.stderr or made.error or 'no answer')}")
    # a warning may stand above the id
    container = made.stdout.strip().splitlines()[-1]
    try:
        with tempfile.TemporaryDirectory() as folder:
            copied = call("cp", f"{container}:{EMBEDDED}", f"{folder}/sbom.json")
            data = host.read_bytes(f"{folder}/sbom.json", _LARGEST_BYTES) if copied.ok else None
    finally:
        call("rm", "--force", "--volumes", container)
    if data is None:
        raise DoctorError(
            f"{image} has no {EMBEDDED}: `vllm-doctor build` did not make it ({_said(copied.stderr)})"
        )
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("bomFormat") != "CycloneDX":
        raise DoctorError(f"{EMBEDDED} in {image} is not a CycloneDX document")
    return data


def _said(text: str) -> str:
    return " ".join(text.split())[:300]


def _system(path: Path) -> tuple[str, str]:
    fields = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', _text(path), re.MULTILINE))
    return fields.get("ID", "linux"), fields.get("VERSION_ID", "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from None


def main(arguments: Sequence[str]) -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="python -m doctor.image.sbom")
    parser.add_argument("--lock", type=Path, required=True, help="Python lock with hashes")
    parser.add_argument("--dpkg", type=Path, required=True, help="dpkg's status file")
    parser.add_argument("--image", type=Path, required=True, help="image.json: what the labels say")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--os-release", type=Path, default=Path("/etc/os-release"))
    options = parser.parse_args(arguments)
    try:
        image = json.loads(_text(options.image))
    except ValueError:
        image = None
    if not isinstance(image, dict) or not all(isinstance(v, str) for v in image.values()):
        raise DoctorError(f"{options.image} is not a JSON object of texts")
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch and not epoch.isdecimal():
        raise DoctorError(f"SOURCE_DATE_EPOCH {epoch!r} is not a number of seconds")
    value = document(
        read_lock(_text(options.lock), str(options.lock)),
        read_dpkg(_text(options.dpkg)),
        image,
        system=_system(options.os_release),
        installed=importlib.metadata.distributions(),
        epoch=int(epoch) if epoch else None,
    )
    write(options.out, dump(value))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DoctorError as error:
        print(f"sbom: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
