"""The steps that a finding's remedies name: their commands, variables and options are this machine's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from doctor.finding import Finding, Remedy, Risk
from doctor.fix.actions.install_python import InstallPython
from doctor.fix.draft import Draft

#: Variables of vLLM's environment that a remedy may set; not PATH and the like, which a file cannot extend.
_VARIABLE = re.compile(
    r"(?<![\w/])((?:VLLM|TRITON|NCCL|PYTORCH|TORCH)_[A-Z0-9_]+|CC|CXX|CUDAHOSTCXX|NVCC_CCBIN|MAX_JOBS|LIBRARY_PATH"
    r"|CUDA_VISIBLE_DEVICES|CUDA_HOME)=([^\s,;:$]+(?::[^\s,;:$]+)*)"
)
#: Options of ``vllm serve`` that a remedy may set.
_FLAG = re.compile(
    r"--(?:(gpu-memory-utilization|max-model-len|max-num-seqs|max-num-batched-tokens|tensor-parallel-size)"
    r"[ =](\d+(?:\.\d+)?)|(dtype|kv-cache-dtype|mamba-cache-mode)[ =](half|float16|bfloat16|auto|fp8\w*|align))"
    r"(?![\w.]*\w)"
)
_SWITCH = re.compile(r"--(disable-custom-all-reduce)\b(?![ =][a-z0-9])")
#: A remedy that sets something and asks nothing first ("If ..., start with ..." is for the person).
_SETTING = re.compile(r"^(?:Or )?(?:set|start|pass)\b", re.IGNORECASE)


def from_remedies(draft: Draft, finding: Finding) -> None:
    """Takes the first remedy that can be carried out; without one, the first becomes a step by hand."""
    for remedy in finding.fixes:
        if _take(draft, finding, remedy):
            return
    if not finding.fixes:
        draft.left[finding.id] = "no remedy is known"
        return
    first = next((r for r in finding.fixes if not r.automatic), finding.fixes[0])
    draft.manual(finding, first.summary, first.commands)


def _take(draft: Draft, finding: Finding, remedy: Remedy) -> bool:
    if len(remedy.commands) == 1 and remedy.automatic:
        command = tuple(c for c in remedy.commands[0] if c != "sudo")
        names = package_names(command)
        if names:
            if draft.packages(finding, remedy.summary, names) and _variables(remedy):
                draft.variables(
                    finding, _variables(remedy)
                )  # such as a compiler, to be used where it is installed
            return True
        if len(command) > 4 and command[1:4] == ("-m", "pip", "install"):
            _python(draft, finding, remedy, command)
            return True
    if remedy.risk is Risk.MANUAL or not _SETTING.match(remedy.summary):
        return False
    variables = _variables(remedy)
    flags = {m[1] or m[3]: m[2] or m[4] for m in _FLAG.finditer(remedy.summary)}
    flags |= {m[1]: "true" for m in _SWITCH.finditer(remedy.summary)}
    if variables:
        draft.variables(finding, variables)
    if flags:
        draft.flags(finding, flags)
    return bool(variables or flags)


def _variables(remedy: Remedy) -> dict[str, str | None]:
    return {m[1]: m[2] for m in _VARIABLE.finditer(remedy.summary)}


def package_names(command: Sequence[str]) -> tuple[str, ...]:
    """The packages that an install command of a distribution names; empty for any other command."""
    starts = {("apt-get", "install"), ("dnf", "install"), ("zypper", "--non-interactive"), ("pacman", "-S")}
    if tuple(command[:2]) not in starts:
        return ()
    return tuple(w for w in command[2:] if not w.startswith("-") and w != "install")


def _python(draft: Draft, finding: Finding, remedy: Remedy, command: Sequence[str]) -> None:
    python = draft.snapshot.python
    specs = tuple(w for w in command[4:] if not w.startswith("-"))
    named = {re.split(r"[\[=<>!~]", s)[0].lower().replace("_", "-") for s in specs}
    have = (python.packages if python else None) or {}
    # what vLLM is compiled against must not move while something else is installed
    pins = tuple(
        f"{n}=={have[n]}" for n in ("torch", "vllm") if n in have and n not in named and "+" not in have[n]
    )
    draft.add(
        InstallPython(
            id=f"install_python:{'+'.join(specs)}",
            summary=remedy.summary,
            causes=(finding.id,),
            risk=Risk.CAUTION,
            python=command[0],
            specs=specs,
            options=tuple(w for w in command[4:] if w.startswith("-")),
            pins=pins,
        )
    )
