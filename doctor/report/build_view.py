"""What a person sees of a build: what was chosen and why, the image, how to run it; or what stopped it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from doctor.finding import Verdict
from doctor.report.terminal import console, finding_view, verdict_mark

if TYPE_CHECKING:
    from doctor.image.build import BuildResult
    from doctor.image.plan import Plan

GIB = 1 << 30


def print_build(result: BuildResult, *, verbose: bool = False, out: Console | None = None) -> None:
    """Prints the whole answer of ``build``."""
    out = out or console()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    out.print(verdict_mark(result.judgement.verdict, ascii_only).append(f"  {_headline(result)}"))
    if result.plan is not None:
        out.print()
        out.print(_choices(result.plan))
    for finding in result.findings:
        out.print()
        out.print(finding_view(finding, verbose, ascii_only))
    if result.notes:
        out.print()
        for note in result.notes:
            out.print(Text(f"note: {note}"))
    if result.log is not None:
        out.print()
        out.print(Text(f"log: {result.log}"), soft_wrap=True)
    if result.command is not None and verbose:
        out.print(Text(f"command: {shlex.join(result.command.argv)}", style="dim"), soft_wrap=True)
    if result.sbom is not None:
        out.print(Text(f"bill of materials: {result.sbom}"), soft_wrap=True)
    if result.saved is not None:
        _print_saved(result, out)
    if result.lines is not None:
        _print_lines(result, out)


def _print_saved(result: BuildResult, out: Console) -> None:
    saved = result.saved
    assert saved is not None  # noqa: S101  the caller has looked
    out.print()
    out.print(Text(f"saved: {saved.path} ({saved.bytes / GIB:.1f} GiB)"), soft_wrap=True)
    out.print(Text(f"  {saved.checksum.name} (sha256sum -c), {saved.sbom.name}"), soft_wrap=True)
    out.print(Text(f"  on another machine: docker load --input {shlex.quote(saved.path.name)}"), soft_wrap=True)


def _headline(result: BuildResult) -> str:
    ended = result.ended
    if result.judgement.verdict is Verdict.READY and result.plan is not None and ended is not None:
        size = f", {result.image_bytes / GIB:.1f} GiB" if result.image_bytes else ""
        cached = f", {ended.cached} of {ended.steps} steps from the cache" if ended.cached else ""
        return f"{result.plan.tag} ({(result.image_id or '')[:19]}{size}) built in {ended.seconds:.0f} s{cached}"
    if ended is not None:
        return f"the build stopped after {ended.seconds:.0f} s: {result.findings[0].title}"
    return "nothing was built: " + "; ".join(f.title for f in result.findings)


def _choices(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(style="dim", overflow="fold")
    for choice in plan.choices:
        table.add_row(choice.what, Text(choice.value), Text(choice.why))
    return table


_LABELS = {"check": "examine", "smoke": "prove", "serve": "serve"}


def _print_lines(result: BuildResult, out: Console) -> None:
    assert result.lines is not None  # noqa: S101  the caller has looked
    out.print()
    out.print(Text(f"Run it here ({result.lines.why}):"))
    for name, argv in result.lines.commands:
        out.print(Text(f"  {_LABELS[name]:8}$ {shlex.join(argv)}", style="bold"), soft_wrap=True)  # whole, to copy
    for note in result.lines.notes:
        out.print(Padding(Text(f"note: {note}"), (0, 0, 0, 2)))
    for step in result.lines.first:
        out.print(Padding(Text(f"first: {step}", style="yellow"), (0, 0, 0, 2)))


def as_json(result: BuildResult) -> dict[str, Any]:
    """``build`` of the JSON answer."""
    out: dict[str, Any] = {"plan": plan_json(result.plan) if result.plan else None, "notes": list(result.notes)}
    engine = result.engine
    out["engine"] = (
        {"kind": engine.kind, "path": engine.path, "version": engine.version, "builder": engine.builder}
        if engine
        else None
    )
    out["command"] = list(result.command.argv) if result.command else None
    ended = result.ended
    out["ended"] = (
        {"code": ended.code, "seconds": ended.seconds, "steps": ended.steps, "cached": ended.cached,
         "failed_step": ended.step or None, "error": ended.error or None}
        if ended
        else None
    )  # fmt: skip
    made = bool(result.image_id and result.plan)
    out["image"] = (
        {"tag": result.plan.tag, "id": result.image_id, "bytes": result.image_bytes}
        if made and result.plan
        else None
    )
    out["run"] = (
        {"way": result.lines.way, "why": result.lines.why, "first": list(result.lines.first),
         "notes": list(result.lines.notes),
         **{name: list(argv) for name, argv in result.lines.commands}}
        if result.lines
        else None
    )  # fmt: skip
    out["sbom"] = str(result.sbom) if result.sbom else None
    saved = result.saved
    out["saved"] = (
        {"file": str(saved.path), "sha256": saved.sha256, "bytes": saved.bytes, "checksum": str(saved.checksum),
         "sbom": str(saved.sbom)}
        if saved
        else None
    )  # fmt: skip
    out["log"] = str(result.log) if result.log else None
    return out


def plan_json(plan: Plan) -> dict[str, Any]:
    """``plan`` of the JSON answer."""
    return {
        "id": plan.id,
        "target": plan.target.name,
        "dockerfile": plan.target.dockerfile,
        "base": plan.base,
        "tag": plan.tag,
        "verified": plan.target.verified,
        "choices": [{"what": c.what, "value": c.value, "why": c.why} for c in plan.choices],
        "arguments": dict(plan.arguments),
    }
