"""What a person sees, on a real terminal emulator and in a pipe."""

from __future__ import annotations

import io
import json
from typing import Any

import pyte
from rich.console import Console

from doctor.checks.registry import Judgement, found
from doctor.facts import GpuFacts, PythonFacts, SystemFacts
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped, Verdict
from doctor.report import json_report, terminal
from doctor.report.machine import machine_rows
from doctor.snapshot import Snapshot

SNAPSHOT = Snapshot(
    system=SystemFacts(os_name="Ubuntu 24.04.1 LTS", kernel="6.8.0"),
    gpus=(GpuFacts(0, name="NVIDIA GeForce RTX 3090", compute_capability="8.6", total_bytes=24 << 30),),
    python=PythonFacts(executable="~/env/bin/python", version="3.12.3", chosen_by="VIRTUAL_ENV", vllm="0.26.0"),
)
FINDING = found(
    "gxx12-missing",
    Confidence.PROVEN,
    "gcc-12 12.3.0 is there, its cc1plus is not.",
    [Evidence("toolchain.compilers", "/usr/bin/gcc-12", "gcc-12 -print-prog-name=cc1plus")],
    fixes=[
        Remedy("Install g++-12", True, (("sudo", "apt-get", "install", "g++-12"),), Risk.SAFE),
        Remedy("Second"), Remedy("Third"), Remedy("Fourth"),
    ],
)  # fmt: skip
NOTE = found("pynvml-shim-installed", Confidence.PROVEN, "pynvml 11 is installed.")
JUDGEMENT = Judgement(
    Verdict.BLOCKED,
    (FINDING, NOTE),
    ("disk-full",),
    (Skipped("port-in-use", "no network facts"),),
    ("cpu-only-torch",),
)


def piped(verbose: bool = False) -> list[str]:
    out = Console(file=io.StringIO(), width=100)
    terminal.print_judgement(JUDGEMENT, SNAPSHOT, verbose=verbose, out=out)
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_cause_in_the_first_three_lines_and_fix_in_the_next_five() -> None:
    lines = [line for line in piped() if line.strip()]
    assert "BLOCKED" in lines[0]
    assert any("C++ half (g++-12, cc1plus) is not" in line for line in lines[:3])
    assert any("sudo apt-get install g++-12" in line for line in lines[3:8])


def test_pipes_get_plain_text() -> None:
    assert "\x1b" not in "\n".join(piped(verbose=True))


def test_details_only_when_asked_for() -> None:
    short, long = "\n".join(piped()), "\n".join(piped(verbose=True))
    assert "Fourth" not in short
    assert "Fourth" in long
    assert "/usr/bin/gcc-12" in long
    assert "not judged, no network facts: port-in-use" in long
    assert "waived: cpu-only-torch" in long
    assert "1 check passed, 1 not judged, 1 waived" in short


def test_the_machine_is_shown_below() -> None:
    text = "\n".join(piped())
    assert "RTX 3090" in text
    assert "24.0 GiB" in text
    assert "~/env/bin/python" in text


def test_a_real_terminal_shows_it_within_its_width() -> None:
    buffer = io.StringIO()
    out = Console(file=buffer, force_terminal=True, width=80, color_system="standard", legacy_windows=False)
    terminal.print_judgement(JUDGEMENT, SNAPSHOT, out=out)
    screen = pyte.Screen(80, 60)
    stream = pyte.Stream(screen)
    stream.feed(buffer.getvalue().replace("\n", "\r\n"))
    shown = [line.rstrip() for line in screen.display]
    assert shown[0].startswith("✗ BLOCKED")
    assert "$ sudo apt-get install g++-12" in "\n".join(shown)
    assert screen.buffer[0][0].fg == "red"


def judgement_of(*findings: Finding, **more: Any) -> Judgement:
    return Judgement(Verdict.READY, findings, ("port-in-use",), (), **more)


def test_ready_says_what_was_asked() -> None:
    assert terminal.headline(judgement_of()).plain.endswith("nothing found that stops or slows vLLM")
    few = terminal.headline(judgement_of(only=("port-in-use",))).plain
    assert few == "✓ READY  1 chosen check found nothing that stops vLLM"
    note = found("vllm-not-installed", Confidence.PROVEN, "None.", severity=Severity.NOTE)
    assert "vLLM itself is not installed" in terminal.headline(judgement_of(note)).plain


def test_a_hint_does_not_look_like_a_blocker() -> None:
    out = io.StringIO()
    hint = found("wsl2-uva-unavailable", Confidence.HINT, "Perhaps.")
    sure = found("wsl2-uva-unavailable", Confidence.LIKELY, "Surely.")
    for item in (hint, sure):
        Console(file=out, width=200).print(terminal.finding_view(item, verbose=False))
    lines = [line for line in out.getvalue().splitlines() if "wsl2-uva-unavailable" in line]
    assert [line[0] for line in lines] == ["!", "✗"]


def test_square_brackets_are_text_not_markup() -> None:
    out = io.StringIO()
    rows = Snapshot(system=SystemFacts(os_name="[red]Debian[/] [/nope]", os_id="debian"))
    terminal.print_judgement(judgement_of(), rows, out=Console(file=out, width=100))
    assert "[red]Debian[/] [/nope]" in out.getvalue()


def test_an_environment_that_cannot_be_examined_is_said() -> None:
    facts = PythonFacts(executable=None, chosen_by="--python", error="/opt/x is not a program or a folder")
    assert ("python", "cannot be examined: /opt/x is not a program or a folder") in machine_rows(
        Snapshot(python=facts)
    )


def test_ascii_terminals_get_ascii_icons() -> None:
    assert terminal.headline(JUDGEMENT, ascii_only=True).plain.startswith("XX BLOCKED")
    terminal.finding_view(FINDING, True, ascii_only=True)


def test_json_follows_the_contract() -> None:
    answer = json.loads(json_report.render("check", JUDGEMENT, SNAPSHOT))
    assert list(answer) == [
        "schema_version", "command", "verdict", "findings", "passed", "skipped", "waived", "snapshot",
    ]  # fmt: skip
    (first, second) = answer["findings"]
    assert (answer["schema_version"], answer["command"], answer["verdict"]) == (1, "check", "blocked")
    assert first["severity"] == Severity.BLOCKER.value
    assert first["docs"] == "docs/troubleshooting.md#gxx12-missing"
    assert first["fixes"][0] == {
        "summary": "Install g++-12",
        "automatic": True,
        "commands": [["sudo", "apt-get", "install", "g++-12"]],
        "risk": "safe",
        "verify": [],
    }
    assert first["evidence"][0]["source"] == "gcc-12 -print-prog-name=cc1plus"
    assert second["severity"] == "note"
    assert answer["skipped"] == [{"id": "port-in-use", "why": "no network facts"}]
    assert answer["waived"] == ["cpu-only-torch"]


def test_pipes_get_no_blanks_at_the_end_of_lines() -> None:
    buffer = io.StringIO()
    terminal.print_judgement(JUDGEMENT, SNAPSHOT, verbose=True, out=terminal.console(buffer))
    lines = buffer.getvalue().splitlines()
    assert len(lines) > 10
    assert [line for line in lines if line != line.rstrip()] == []
