"""Recipes for locks and settings of the host."""

from __future__ import annotations

import os
from collections.abc import Callable

from doctor.finding import Confidence, Finding, Risk
from doctor.fix.actions.move_aside import MoveAside
from doctor.fix.actions.sysctl import Sysctl
from doctor.fix.actions.write_file import read_original
from doctor.fix.draft import Draft
from doctor.fix.recipes.remedies import from_remedies

SYSCTL_FILE = "/etc/sysctl.d/60-vllm-doctor.conf"


def stale_locks(draft: Draft, finding: Finding) -> None:
    """Each lock is moved aside within its folder."""
    locks = (draft.snapshot.storage.stale_locks if draft.snapshot.storage else None) or ()
    for path in locks:
        draft.add(
            MoveAside(
                id=f"move_aside:{path}",
                summary=f"Move the stale build lock aside: {path}",
                causes=(finding.id,),
                # elsewhere, such as on the host of this container, a build may still hold it
                risk=Risk.SAFE if finding.confidence is Confidence.PROVEN else Risk.CAUTION,
                root=not draft.is_root and not draft.host.access(os.path.dirname(path), os.W_OK),
                path=path,
            )
        )


def overcommit(draft: Draft, finding: Finding) -> None:
    """vm.overcommit_memory=1, now and at each boot. A container has the kernel of its host."""
    if draft.snapshot.in_container:
        from_remedies_by_hand(draft, finding)
        return
    draft.add(
        Sysctl(
            id="sysctl:vm.overcommit_memory",
            summary="Set vm.overcommit_memory=1 now and at each boot",
            causes=(finding.id,),
            risk=Risk.CAUTION,
            root=True,
            path=SYSCTL_FILE,
            original=read_original(draft.host, SYSCTL_FILE),
            content=b"# made by vllm-doctor: lets vLLM map weights files that are larger than RAM and swap\n"
            b"vm.overcommit_memory = 1\n",
            key="vm.overcommit_memory",
            value="1",
        )
    )


def from_remedies_by_hand(draft: Draft, finding: Finding) -> None:
    """The first remedy, for the person."""
    if finding.fixes:
        where = " (on the host of this container)" if draft.snapshot.in_container else ""
        draft.manual(finding, finding.fixes[0].summary + where, finding.fixes[0].commands)
    else:
        from_remedies(draft, finding)


RECIPES: dict[str, Callable[[Draft, Finding], None]] = {
    "flashqla-stale-build-lock": stale_locks,
    "mmap-overcommit-refused": overcommit,
    "cpu-governor-powersave": from_remedies_by_hand,
    "shm-too-small": from_remedies_by_hand,
}
