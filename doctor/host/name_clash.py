"""Other projects with our names: the command ``vllm-doctor`` and the import package ``doctor``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from doctor.host.access import Host
from doctor.host.dists import scan

#: Our distribution.
OURS = "vllm-env-doctor"


def describe(host: Host, sites: Iterable[str]) -> tuple[str, str]:
    """(what clashes, where it was seen); "" when nothing does.

    The command: the first ``vllm-doctor`` on PATH imports another package than ours, or the
    distribution of that name is in the environment. The import package: the old distribution
    ``doctor`` lies in the same environment as ours.
    """
    script = host.which("vllm-doctor")
    if script:
        text = host.read(script, 4096) or ""
        module = re.search(r"^\s*from\s+([\w.]+)\s+import\b", text, re.M)
        package = module[1].partition(".")[0] if module else None
        if package not in (None, "doctor", "re", "sys", "importlib"):
            return f"{script} belongs to the package {package}, not to {OURS}", script
    found, _ = scan(host, sites)
    other = found.get("vllm-doctor")
    if other:
        return f"the distribution vllm-doctor {other.version} is installed beside vLLM", other.path
    old = found.get("doctor")
    if old and OURS in found:
        return f"the distribution doctor {old.version} owns the same import package as {OURS}", old.path
    return "", script or "PATH"
