"""Requires-Dist lines against what is installed, judged as pip would for that interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from doctor.host.dists import normalise


def conflicts(
    requires: Mapping[str, tuple[str, ...]],
    installed: Mapping[str, str],
    python_version: str | None,
    implementation: str | None,
) -> tuple[str, ...]:
    """One sentence for each requirement that is not met. ``requires``: "vllm 0.26.0" -> its lines.

    Optional extras are left out; a line or version that cannot be read is no conflict.
    """
    from packaging.markers import InvalidMarker, UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

    environment = _environment(python_version, implementation)

    def check(owner: str, line: str) -> Iterator[str]:
        try:
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate(environment):
                return
        except (InvalidRequirement, InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
            return
        have = installed.get(normalise(requirement.name))
        wanted = f"{owner} requires {requirement.name}{requirement.specifier}"
        if have is None:
            yield f"{wanted}, which is not installed"
            return
        try:
            version = Version(have)
        except InvalidVersion:
            return
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{wanted}, {have} is installed"

    return tuple(s for owner, lines in requires.items() for line in lines for s in check(owner, line))


def _environment(python_version: str | None, implementation: str | None) -> dict[str, str]:
    """Markers of the examined interpreter; the platform is this one, which is Linux."""
    values = {"extra": "", "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    if python_version:
        values["python_full_version"] = python_version
        values["python_version"] = ".".join(python_version.split(".")[:2])
    if implementation:
        values["implementation_name"] = implementation
        values["platform_python_implementation"] = {"cpython": "CPython", "pypy": "PyPy"}.get(
            implementation, implementation
        )
    return values
