"""Where a build stands, by the engine's own plain progress; and what a Dockerfile will do, by its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Instructions that BuildKit counts as steps of a stage, besides the pull of a base.
_COUNTED = ("RUN", "COPY", "ADD", "WORKDIR")
#: "#7 [python 2/4] RUN ...": BuildKit, docker 20.10 to 28.
_VERTEX = re.compile(r"#(\d+) \[(?:([^\]\s]+) +)?(\d+)/(\d+)\] (.*)")
_INTERNAL = re.compile(r"#(\d+) (\[internal\] .*)")
_STATE = re.compile(r"#(\d+) (DONE|CACHED|CANCELED|ERROR)\b:?(.*)")
_OUTPUT = re.compile(r"#(\d+) (?:\d+\.\d+ )?(.*)")
#: "[1/2] STEP 3/7: RUN ...": podman (buildah).
_STEP = re.compile(r"(?:\[(\d+)/(\d+)\] )?STEP (\d+)(?:/(\d+))?: (.*)")
_PODMAN_ERROR = re.compile(r"(?:Error|error): (.*)")
#: The client's last words about a failure, after BuildKit's.
_FINAL = re.compile(r"(?:ERROR: )?((?:failed to solve|executor failed running|process \").*)")
#: What the image's own scripts say when they stop a build; better than "exit code: 1".
_OURS = re.compile(r"(?:install-(?:apt|python|turing)|prove: FAILED): (.+)")
#: Lines of a client that give no reason.
_ASIDES = ("See '", "Run '", "---", " > ")
#: Where a step's files come from says less than what it runs.
_FLAGS = re.compile(r"--(?:mount|network|security|from|chown|chmod)=\S+\s+")
#: Letters of a step's text in the answer, and of what is told while it runs: one line of a narrow terminal.
_WIDTH, _LINE = 72, 58


@dataclass
class Steps:
    """Takes the output line by line. ``title``: the step that began last; ``failed``: the one that failed."""

    total: int | None = None
    begun: int = 0
    cached: int = 0
    title: str = ""
    failed: str = ""
    error: str = ""
    last: str = ""
    own: list[str] = field(default_factory=list)  # reasons that the running step's own script gives
    _names: dict[str, str] = field(default_factory=dict)
    _work: set[str] = field(default_factory=set)
    _spoken: str = ""

    def take(self, line: str) -> None:
        """One line of the engine's plain output."""
        line = line.rstrip()
        if match := _VERTEX.match(line):
            self._vertex(match)
        elif match := _INTERNAL.match(line):
            self._names[match[1]] = _short(match[2].partition("] ")[2])
        elif match := _STATE.match(line):
            self._state(match)
        elif match := _STEP.match(line):
            stage = f" of stage {match[1]} of {match[2]}" if match[1] else ""
            self._begin(f"{match[3]}{f' of {match[4]}' if match[4] else ''}{stage}", match[5])
        elif line.startswith("--> "):  # podman: the layer of a step, or that it was there
            self.cached += line.startswith("--> Using cache ")
        elif match := _FINAL.match(line):
            self.error = self.error or match[1]
        elif match := _PODMAN_ERROR.match(line):
            self.error, self.failed = match[1], self.title
        elif match := _OUTPUT.match(line):
            if match[2] and not match[2].startswith("sha256:") and self._names.get(match[1]) == self.title:
                self._output(match[2])
        elif line and not line.startswith(_ASIDES):
            self._spoken = line
            if not self._names:  # podman prints the output of a step as it is
                self._output(line)

    def _output(self, line: str) -> None:
        self.last = line
        if match := _OURS.match(line):
            self.own.append(match[1])

    def _vertex(self, match: re.Match[str]) -> None:
        number, stage, _, _, what = match.groups()
        if number in self._names:  # BuildKit repeats the title when it comes back to a step
            return
        of = f" of {self.total}" if self.total else ""
        self._names[number] = self._begin(f"{self.begun + 1}{of}", f"{stage}: {what}" if stage else what)
        if not what.startswith("FROM "):  # a base that is there counts as cached
            self._work.add(number)

    def _begin(self, place: str, what: str) -> str:
        self.begun += 1
        self.last, self.own = "", []
        self.title = f"step {place}, {_short(what)}"
        return self.title

    def _state(self, match: re.Match[str]) -> None:
        number, state, rest = match.groups()
        self.cached += state == "CACHED" and number in self._work
        if state == "ERROR":
            self.failed = self._names.get(number, self.failed)
            self.error = rest.strip()

    @property
    def reason(self) -> str:
        """The message of the failure: of the step, or of a client that could not even begin."""
        if self.error and self.own:
            return "; ".join(self.own)
        return self.error or self._spoken

    def told(self) -> str:
        """Which step, and the last line it printed, if any."""
        return _short(f"{self.title.partition(', ')[0]}: {self.last}" if self.last else self.title, _LINE)


def _short(text: str, width: int = _WIDTH) -> str:
    words = " ".join(_FLAGS.sub("", text).split())
    return words if len(words) <= width else words[: width - 3] + "..."


# ---------------------------------------------------------------- the Dockerfile


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Name and arguments of each instruction, continued lines joined, comments left out."""
    joined = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        if joined:
            name, _, rest = joined.partition(" ")
            yield name.upper(), rest.strip()
        joined = ""


def declared(text: str) -> frozenset[str]:
    """Names of the build arguments that a Dockerfile declares."""
    return frozenset(rest.partition("=")[0].strip() for name, rest in _instructions(text) if name == "ARG")


def stage_names(text: str) -> tuple[str, ...]:
    """Names of all stages."""
    return tuple(stage.name for stage in _stages(text))


@dataclass
class _Stage:
    name: str
    base: str
    steps: int = 0
    uses: list[str] = field(default_factory=list)


def _stages(text: str) -> list[_Stage]:
    stages: list[_Stage] = []
    for name, rest in _instructions(text):
        if name == "FROM":
            words = [w for w in rest.split() if not w.startswith("--")]
            alias = words[2] if len(words) == 3 and words[1].lower() == "as" else str(len(stages))
            stages.append(_Stage(alias, words[0]))
        elif stages and name in _COUNTED:
            stages[-1].steps += 1
            stages[-1].uses += re.findall(r"(?:--from=|[,=]from=)([\w.-]+)", rest)
    return stages


def total(text: str, wanted: str) -> int | None:
    """Steps of a stage and of all it uses, as BuildKit numbers them; None when there is no such stage."""
    stages = {s.name: s for s in _stages(text)}
    if wanted not in stages:
        return None
    needed: dict[str, _Stage] = {}
    open_ = [wanted]
    while open_:
        name = open_.pop()
        if name in needed or name not in stages:
            continue
        needed[name] = stages[name]
        open_ += [stages[name].base, *stages[name].uses]
    return sum(s.steps + (s.base not in stages) for s in needed.values())
