"""From a finding to actions: a recipe for a cause, or what its remedies say."""

from __future__ import annotations

from collections.abc import Callable

from doctor.checks.container_way import CAUSE as SHORTER_WAY
from doctor.finding import Finding
from doctor.fix import container
from doctor.fix.draft import Draft
from doctor.fix.errors import ActionError
from doctor.fix.recipes import docker, host, wsl
from doctor.fix.recipes.remedies import from_remedies

Recipe = Callable[[Draft, Finding], None]

#: Causes whose repair is more than their remedies' commands.
RECIPES: dict[str, Recipe] = {
    **host.RECIPES,
    **docker.RECIPES,
    **wsl.RECIPES,
    SHORTER_WAY: container.recipe,
}


def plan_finding(draft: Draft, finding: Finding) -> None:
    """Adds the steps for one finding; a cause that cannot be planned is left with the reason."""
    try:
        RECIPES.get(finding.id, from_remedies)(draft, finding)
    except ActionError as error:
        draft.left[finding.id] = str(error)
