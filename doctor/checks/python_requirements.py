"""What the installed vLLM requires, compared with what is there. Shared by the checks of the area python."""

from __future__ import annotations

import re

from doctor import catalogue
from doctor.facts import PythonFacts
from doctor.finding import Remedy, Risk
from doctor.snapshot import Snapshot


def facts_of(s: Snapshot) -> PythonFacts:
    """The Python facts of a check that needs them."""
    assert s.python is not None  # noqa: S101  every check here needs=("python",)
    return s.python


def unread(p: PythonFacts) -> str:
    return p.error or "the environment that runs vLLM could not be read"


def pip_install(p: PythonFacts, *wanted: str) -> tuple[tuple[str, ...], ...]:
    return ((p.executable, "-m", "pip", "install", *wanted),) if p.executable else ()


def reinstall(p: PythonFacts, text: str, *wanted: str) -> Remedy:
    commands = pip_install(p, *wanted)
    return Remedy(
        text, bool(commands), commands, Risk.CAUTION if commands else Risk.MANUAL, ("vllm-doctor check",)
    )


def requirements(p: PythonFacts) -> dict[str, tuple[str, str]]:
    """Name -> (specifier, source) of what the installed vLLM requires on this interpreter.

    From its own metadata; for an official release whose metadata does not list them, from the table.
    """
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement

    wanted: dict[str, tuple[str, str]] = {}
    source = p.sources.get("vllm_requires", "metadata of vLLM")
    minor = ".".join((p.version or "").split(".")[:2])
    environment = {"extra": "", "sys_platform": "linux", "platform_system": "Linux"}
    if p.version:
        environment |= {"python_version": minor, "python_full_version": p.version}
    for line in p.vllm_requires or ():
        try:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                wanted[requirement.name.lower()] = (str(requirement.specifier), source)
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            continue
    if "torch" in wanted or not re.fullmatch(r"[\d.]+(post\d+)?(\+cu\d+)?", p.vllm or ""):
        return wanted
    release = (p.vllm or "").partition("+")[0]
    row: dict[str, str] = next((r for r in catalogue.table("vllm_pins") if r["vllm"] == release), {})
    for name in ("torch", "transformers"):
        if row.get(name):
            specifier = f"=={row[name]}" if name == "torch" else row[name]
            wanted.setdefault(name, (specifier, f"table vllm_pins (metadata of vllm {release})"))
    return wanted


def compare(version: str, specifier: str) -> str | None:
    """Gives "ok", "old" (below a lower bound) or "new" (above an upper one, or excluded); None if unreadable."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        have, wanted = Version(version), SpecifierSet(specifier)
        if wanted.contains(have, prereleases=True):
            return "ok"
        for part in wanted:
            bound = Version(part.version.removesuffix(".*"))
            if not part.contains(have, prereleases=True):
                return "old" if have < bound else "new"
    except (InvalidVersion, InvalidSpecifier):
        return None
    return None
