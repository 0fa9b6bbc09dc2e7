"""Recipes for WSL2: vLLM's environment inside the distribution, and exact text for the Windows side."""

from __future__ import annotations

from collections.abc import Callable

from doctor.finding import Finding, Risk
from doctor.fix.actions.write_file import WriteFile
from doctor.fix.draft import Draft
from doctor.fix.errors import ActionError
from doctor.fix.privilege import program

WSL_LIB = "/usr/lib/wsl/lib"
LOADER_FILE = "/etc/ld.so.conf.d/ld.wsl.conf"
GIB = 1 << 30


def pinned_memory(draft: Draft, finding: Finding) -> None:
    """Asks for pinned memory where the kernel has it; else the runner that does without, and a newer kernel."""
    wsl = draft.snapshot.wsl
    if wsl is not None and wsl.pin_memory_kernel_ok is False:
        draft.manual(finding, "In Windows: update the WSL kernel", UPDATE)
        draft.variables(finding, {"VLLM_USE_V2_MODEL_RUNNER": "0"})
        return
    draft.variables(finding, {"VLLM_WSL2_ENABLE_PIN_MEMORY": "1"})


def spawn(draft: Draft, finding: Finding) -> None:
    """Worker processes that are spawned, not forked."""
    draft.variables(finding, {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})


def expandable_segments(draft: Draft, finding: Finding) -> None:
    """The allocator's settings without expandable segments, under both names that torch reads."""
    env = dict(draft.snapshot.python.env) if draft.snapshot.python else {}
    env.update(draft.snapshot.serving.env if draft.snapshot.serving else {})
    names = [
        n for n in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if "expandable_segments" in env.get(n, "")
    ]
    if not names:
        raise ActionError("which variable switches them on is not known")
    for name in names:
        parts = [p for p in env[name].split(",") if not p.strip().lower().startswith("expandable_segments")]
        draft.variables(finding, {name: ",".join([*parts, "expandable_segments:False"])})


def link_name(draft: Draft, finding: Finding) -> None:
    """Where -lcuda is found."""
    draft.variables(finding, {"TRITON_LIBCUDA_PATH": WSL_LIB, "LIBRARY_PATH": WSL_LIB})


def loader_path(draft: Draft, finding: Finding) -> None:
    """Tells the loader of the folder that WSL mounts the driver's libraries into."""
    draft.add(
        WriteFile.plan(
            draft.host,
            LOADER_FILE,
            f"{WSL_LIB}\n".encode(),
            id=f"write_file:{LOADER_FILE}",
            summary=f"Tell the loader of {WSL_LIB}",
            causes=(finding.id,),
            risk=Risk.CAUTION,
            root=not draft.is_root,
            after=((program("ldconfig"),),),
        )
    )


UPDATE = (("wsl.exe", "--update"), ("wsl.exe", "--shutdown"))


def memory_limit(draft: Draft, finding: Finding) -> None:
    """The text for .wslconfig. Windows' own RAM is not visible here, so the figure for memory= is the person's."""
    system = draft.snapshot.system
    have = system.ram_total_bytes if system else None
    now = f" (it is {have / GIB:.0f} GiB now)" if have else ""
    text = "# %UserProfile%\\.wslconfig\n[wsl2]\nmemory=24GB\nswap=16GB\n"
    summary = (
        f"In Windows: raise memory= and swap= in .wslconfig{now}; 24GB stands for about three quarters of the "
        "machine's RAM"
    )
    draft.manual(finding, summary, (("wsl.exe", "--shutdown"),), text)


RECIPES: dict[str, Callable[[Draft, Finding], None]] = {
    "wsl2-uva-unavailable": pinned_memory,
    "wsl2-pin-memory-off": pinned_memory,
    "wsl2-nvml-fork-unsupported": spawn,
    "wsl2-expandable-segments": expandable_segments,
    "wsl2-libcuda-link-name-missing": link_name,
    "wsl2-libcuda-not-on-loader-path": loader_path,
    "wsl2-memory-limit-small": memory_limit,
}
