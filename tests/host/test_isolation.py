"""A container is told from a virtual machine whose disk was made from a container image."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.host import isolation
from tests.fakes import FakeHost

# captured: a virtual machine started from a container image, and `docker run --pid=host` on it
VM = """22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12334432k,nr_inodes=3083608,mode=755
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
"""
CONTAINER = """74 48 0:39 / / rw,relatime master:2 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A
75 74 0:42 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
76 74 0:43 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
"""
FIRST, OTHER = "pid:[4026531836]", "pid:[4026532201]"


@pytest.mark.parametrize(
    ("mounts", "namespace", "marker", "expected"),
    [
        (VM, FIRST, True, False),  # the marker file is a leftover of the image
        (VM, FIRST, False, False),
        (VM, OTHER, True, True),
        (CONTAINER, FIRST, True, True),  # --pid=host
        (CONTAINER, OTHER, True, True),
        (CONTAINER, OTHER, False, True),  # told by its layers
    ],
)
def test_container_or_machine(tmp_path: Path, mounts: str, namespace: str, marker: bool, expected: bool) -> None:
    host = FakeHost(tmp_path)
    host.write("/proc/self/mountinfo", mounts)
    host.write("/proc/1/comm", "init\n")
    host.link("/proc/self/ns/pid", namespace)
    if marker:
        host.write("/.dockerenv", "")
    assert isolation.in_container(host) is expected


def test_nothing_readable_is_not_known(tmp_path: Path) -> None:
    assert isolation.in_container(FakeHost(tmp_path)) is None
