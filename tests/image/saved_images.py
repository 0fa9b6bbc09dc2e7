"""Hand-made tars in the layouts of `docker save` and `podman save`, and a reader that believes nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TAG = "vllm-doctor:0.26.0-cu130-0123456789ab"


def digits(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def layer(files: Mapping[str, bytes]) -> bytes:
    """A plain layer as Docker writes it."""
    return tar([(name, data) for name, data in files.items()])


def tar(members: Iterable[tuple[str, bytes | str]]) -> bytes:
    """A tar; text as data is a symbolic link's target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.mtime = 1_700_000_000  # what the engine's clock says must not reach the archive
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def config(layers: Sequence[bytes], **changes: Any) -> bytes:
    """An image's config; ``layers`` are the plain ones."""
    value = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/true"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digits(one)}" for one in layers]},
        **changes,
    }
    return json.dumps(value).encode()


def legacy(layers: Sequence[bytes], tags: Sequence[str] | None = (TAG,)) -> bytes:
    """Docker 20.10 to 24: a folder a layer, whose name is no digest of it; equal layers are links to the first."""
    whole = config(layers)
    members: list[tuple[str, bytes | str]] = []
    names, seen = [], {}
    for number, one in enumerate(layers):
        name = digits(f"v1 id of {number}".encode())
        names.append(f"{name}/layer.tar")
        content = f"../{seen[one]}/layer.tar" if one in seen else one
        seen.setdefault(one, name)
        members += [(f"{name}/VERSION", b"1.0"), (f"{name}/json", b'{"id":"x"}'), (f"{name}/layer.tar", content)]
    members.append((f"{digits(whole)}.json", whole))
    members = sorted(members)  # Docker walks its folder in this order, so links may come before their target
    entry = {"Config": f"{digits(whole)}.json", "RepoTags": list(tags) if tags else None, "Layers": names}
    members += [("manifest.json", json.dumps([entry]).encode()), ("repositories", b'{"vllm-doctor":{}}')]
    return tar(members)


def hybrid(layers: Sequence[bytes], plain: Sequence[bytes] | None = None) -> bytes:
    """Docker 25 and later: OCI blobs beside manifest.json. ``plain``: what is in layers that are compressed."""
    whole = config(plain or layers)
    blobs = {digits(data): data for data in (*layers, whole, b'{"id":"v1"}')}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "x", "digest": f"sha256:{digits(whole)}", "size": len(whole)},
        "layers": [],
    }
    data = json.dumps(manifest).encode()
    blobs[digits(data)] = data
    entry = {
        "Config": f"blobs/sha256/{digits(whole)}",
        "RepoTags": [TAG],
        "Layers": [f"blobs/sha256/{digits(one)}" for one in layers],
    }
    index = {"schemaVersion": 2, "manifests": [{"digest": f"sha256:{digits(data)}", "size": len(data)}]}
    members = [(f"blobs/sha256/{name}", blob) for name, blob in sorted(blobs.items())]
    members += [
        ("index.json", json.dumps(index).encode()),
        ("manifest.json", json.dumps([entry]).encode()),
        ("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'),
        ("repositories", b"{}"),
    ]
    return tar(members)


def podman(layers: Sequence[bytes]) -> bytes:
    """podman's docker-archive: layers by digest at the top, links for old readers."""
    whole = config(layers)
    members: list[tuple[str, bytes | str]] = [(f"{digits(one)}.tar", one) for one in dict.fromkeys(layers)]
    members += [("1234/layer.tar", f"../{digits(layers[0])}.tar"), (f"{digits(whole)}.json", whole)]
    entry = {
        "Config": f"{digits(whole)}.json",
        "RepoTags": [f"localhost/{TAG}"],
        "Layers": [f"{digits(one)}.tar" for one in layers],
    }
    return tar([*members, ("manifest.json", json.dumps([entry]).encode())])


class Archive:
    """An archive, checked by hand: every blob by its digest, every descriptor, both tables of contents."""

    def __init__(self, data: bytes) -> None:
        self.files: dict[str, bytes] = {}
        assert len(data) % 512 == 0
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
                if member.isfile():
                    assert member.name not in self.files
                    found = archive.extractfile(member)
                    assert found is not None
                    self.files[member.name] = found.read()
        for name, blob in self.files.items():
            if name.startswith("blobs/"):
                assert name == f"blobs/sha256/{digits(blob)}"
        assert json.loads(self.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        self.index = json.loads(self.files["index.json"])
        (self.docker,) = json.loads(self.files["manifest.json"])
        self.manifest = json.loads(self._blob(self.index["manifests"][0]))
        self.config_bytes = self._blob(self.manifest["config"])
        self.packed = [self._blob(one) for one in self.manifest["layers"]]
        self.plain = [gzip.decompress(one) for one in self.packed]
        used = {d["digest"] for d in (*self.index["manifests"], self.manifest["config"], *self.manifest["layers"])}
        assert {f"sha256:{n.rpartition('/')[2]}" for n in self.files if n.startswith("blobs/")} == used
        diff_ids = json.loads(self.config_bytes)["rootfs"]["diff_ids"]
        assert diff_ids == [f"sha256:{digits(one)}" for one in self.plain]
        assert self.files[self.docker["Config"]] == self.config_bytes
        assert [self.files[name] for name in self.docker["Layers"]] == self.packed

    def _blob(self, descriptor: Mapping[str, Any]) -> bytes:
        data = self.files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert descriptor["size"] == len(data)
        return data
