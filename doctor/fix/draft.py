"""A plan in the making: recipes say what they want, the draft makes one action of wishes for the same thing."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from doctor.checks.packages import family
from doctor.finding import Finding, Risk
from doctor.fix.action import Action
from doctor.fix.actions import apt
from doctor.fix.actions.install_package import InstallPackage
from doctor.fix.actions.launch_profile import LaunchProfile
from doctor.fix.actions.manual import Manual
from doctor.fix.actions.merge_keyvalue import MergeKeyValue
from doctor.fix.actions.update_package_lists import UpdatePackageLists
from doctor.fix.errors import ActionError
from doctor.host.access import Host
from doctor.snapshot import Snapshot

#: Package lists older than this are refreshed first: servers drop old versions of packages.
LISTS_TOO_OLD_S = 7 * 86_400.0
ENV_HEAD = """\
# Settings for vLLM, made by vllm-doctor. They count where vLLM is started with this file:
#   shell:    set -a; . THIS-FILE; set +a        docker:  --env-file THIS-FILE
#   systemd:  EnvironmentFile=THIS-FILE
"""
PROFILE_HEAD = "# Launch profile for vLLM, made by vllm-doctor: vllm serve MODEL --config THIS-FILE\n"


def config_folder(env: Mapping[str, str]) -> str:
    """$XDG_CONFIG_HOME/vllm-doctor, or ~/.config/vllm-doctor."""
    base = env.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):
        base = posixpath.join(env.get("HOME") or "/root", ".config")
    return posixpath.join(base, "vllm-doctor")


@dataclass
class Draft:
    """What the recipes add to. ``left`` names causes without an automatic step, each with the reason."""

    snapshot: Snapshot
    host: Host
    is_root: bool
    found: list[Action] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    _variables: dict[str, tuple[str | None, list[str]]] = field(default_factory=dict)
    _flags: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def add(self, action: Action) -> None:
        """Adds an action; one that is there already only gets the new cause."""
        for i, other in enumerate(self.found):
            if other.id == action.id:
                causes = tuple(dict.fromkeys((*other.causes, *action.causes)))
                self.found[i] = replace(other, causes=causes)
                return
        self.found.append(action)

    def packages(self, finding: Finding, summary: str, names: Iterable[str]) -> bool:
        """Packages of the distribution; False when it is left to the person.

        Only apt's are installed; other managers' commands are shown, as nobody has tried them.
        """
        wanted = tuple(names)
        manager = family(self.snapshot)
        if manager != "apt":
            commands = tuple(c for r in finding.fixes for c in r.commands if set(wanted) <= set(c))[:1]
            text = f"{summary} (not tried with {manager or 'this package manager'}, so it is not run for you)"
            self.manual(finding, text, commands)
            return False
        prefix = "" if self.is_root else "sudo "
        answer = self.host.run(
            (
                "apt-get",
                "-s",
                "-o",
                "APT::Get::AutomaticRemove=false",
                "--no-install-recommends",
                "install",
                *wanted,
            ),
            timeout=20.0,
        )
        adds: tuple[str, ...] | None = None
        upgrades: tuple[str, ...] = ()
        depends: tuple[str, ...] = ()
        if answer.ok:
            plan = apt.parse(answer.stdout)
            if plan.removed:
                text = f"{summary}: apt would remove {' '.join(plan.removed)} for it, so it is not done for you"
                self.manual(finding, text, ((*prefix.split(), "apt-get", "install", *wanted),))
                return False
            adds, upgrades = tuple(plan.new), tuple(plan.upgraded)
        if not answer.ok or self._lists_old():
            lists = UpdatePackageLists(
                id="update_package_lists", summary="Refresh the list of packages", causes=(finding.id,), root=True,
                helper=True,
            )  # fmt: skip
            self.add(lists)
            depends = (lists.id,)
        self.add(
            InstallPackage(
                id=f"install_package:{'+'.join(wanted)}",
                summary=summary,
                causes=(finding.id,),
                risk=Risk.CAUTION if upgrades else Risk.SAFE,
                root=True,
                depends_on=depends,
                names=wanted,
                adds=adds,
                upgrades=upgrades,
            )
        )
        return True

    def variables(self, finding: Finding, values: Mapping[str, str | None]) -> None:
        """Variables in vLLM's environment file. What an earlier, weightier finding set is not changed."""
        for name, value in values.items():
            kept, causes = self._variables.setdefault(name, (value, []))
            if kept != value:
                self.left.setdefault(finding.id, f"it wants {name}={value}, and {causes[0]} wants {name}={kept}")
            elif finding.id not in causes:
                causes.append(finding.id)

    def flags(self, finding: Finding, values: Mapping[str, str]) -> None:
        """Options of ``vllm serve`` in the launch profile."""
        for name, value in values.items():
            kept, causes = self._flags.setdefault(name, (value, []))
            if kept == value and finding.id not in causes:
                causes.append(finding.id)

    def manual(
        self, finding: Finding, summary: str, commands: Iterable[Iterable[str]] = (), text: str = ""
    ) -> None:
        """A step for the person; the check of the cause sees afterwards whether it was done."""
        self.add(
            Manual(
                id=f"manual:{finding.id}",
                summary=summary,
                causes=(finding.id,),
                commands=tuple(tuple(c) for c in commands),
                text=text,
                verify_with=(f"vllm-doctor check --only {finding.id}",),
            )
        )

    def actions(self) -> list[Action]:
        """All actions, helpers first and manual steps last, otherwise in the order of the findings."""
        made = [*self.found]
        for make in (self._environment, self._profile):
            try:
                made += make()
            except ActionError as error:
                self.left["settings"] = str(error)
        return sorted(made, key=lambda a: (a.manual, not a.helper))

    def _environment(self) -> list[Action]:
        if not self._variables:
            return []
        path = f"{config_folder(self.host.env)}/vllm.env"
        causes = tuple(dict.fromkeys(c for _, named in self._variables.values() for c in named))
        shown = " ".join(f"{n}={v}" if v is not None else f"no {n}" for n, (v, _) in self._variables.items())
        return [
            MergeKeyValue.merge(
                self.host,
                path,
                {n: v for n, (v, _) in self._variables.items()},
                ENV_HEAD.replace("THIS-FILE", path),
                id=f"merge_keyvalue:{path}",
                summary=f"Set for vLLM: {shown}",
                causes=causes,
                needs=(f"start vLLM with {path}",),
            )
        ]

    def _profile(self) -> list[Action]:
        if not self._flags:
            return []
        path = f"{config_folder(self.host.env)}/serve.yaml"
        causes = tuple(dict.fromkeys(c for _, named in self._flags.values() for c in named))
        values = {n: v for n, (v, _) in self._flags.items()}
        return [
            LaunchProfile.merge(
                self.host,
                path,
                values,
                PROFILE_HEAD.replace("THIS-FILE", path),
                id=f"launch_profile:{path}",
                summary=f"Launch profile with {' '.join(f'--{n} {v}' for n, v in values.items())}",
                causes=causes,
                needs=(f"start vLLM with --config {path}",),
            )
        ]

    def _lists_old(self) -> bool:
        stamps = [self.host.stat(p) for p in self.host.glob("/var/lib/apt/lists/*_Packages*")]
        newest = max((s.st_mtime for s in stamps if s is not None), default=None)
        if newest is None:
            return True
        for path in ("/var/lib/apt/lists/partial", "/var/cache/apt/pkgcache.bin"):
            state = self.host.stat(path)  # a refresh that found nothing new leaves the lists' own dates
            newest = max(newest, state.st_mtime) if state is not None else newest
        return self.host.time() - newest > LISTS_TOO_OLD_S
