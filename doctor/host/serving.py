"""Probe: what the environment already decides for a server that would be started from here.

Only variables that choose cards and ranks; flags are not known before a server runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doctor.facts import ServingFacts
from doctor.host.access import Host
from doctor.host.examine import Options

#: CUDA's own, the container runtime's, and the two that the Turing fork's launcher reads.
NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "GPU_DEVICES",
    "TP_SIZE",
    "PP_SIZE",
)


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """The variables that are set, an empty value included: CUDA_VISIBLE_DEVICES= hides every card."""
    env = {name: host.env[name] for name in NAMES if name in host.env}
    return {"serving": ServingFacts(port=options.port, env=env, sources={"env": "environment"})}
