"""A report in the form that maintainers ask for: type, summary, expected, actual, exact command, environment.

The headings are those of the issue form of the vLLM fork for the RTX 2080 Ti; vLLM's own form asks for the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from doctor.report.fit_parts import fits, pair, part, verdict_words
from doctor.report.parts import dicts

#: What the tracker's form offers, by what a finding says. Anything else that stops is a runtime failure.
_QUALITY = frozenset(
    ("mtp-prefix-cache-corrupts-output", "prefix-cache-corrupts-output", "mtp-corrupts-output",
     "output-not-repeatable", "jit-fast-mode-mtp-garbles", "mtp-drops-logit-bias-min-p")
)  # fmt: skip
_BUILD_AREAS = frozenset(("compiler", "python"))
#: Sentences of the summary, at most.
_SENTENCES = 5


@dataclass(frozen=True)
class Issue:
    """``kind`` as the form names it; ``commands`` are exact, ``profile`` (label, text) says how it was started."""

    kind: str = "runtime failure"
    summary: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    actual: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    profile: tuple[tuple[str, str], ...] = ()


def shell(command: Sequence[Any], env: Mapping[str, Any] | None = None) -> str:
    """A command line to paste."""
    words = [f"{k}={shlex.quote(str(v))}" for k, v in (env or {}).items()]
    return " ".join([*words, *(shlex.quote(str(c)) for c in command)])


def describe(answers: Sequence[Mapping[str, Any]], verdict: str, findings: Sequence[Mapping[str, Any]]) -> Issue:
    """The texts of the form, from what the answers say."""
    telling = [f for f in findings if f.get("severity") != "note"]
    smokes = [a["smoke"] for a in answers if isinstance(a.get("smoke"), dict)]
    sweeps = [a["sweep"] for a in answers if isinstance(a.get("sweep"), dict)]
    if answers and all(fits(a) for a in answers):
        return _predicted([f for a in answers for f in fits(a)])
    return Issue(
        kind=_kind(verdict, telling),
        summary=tuple(_summary(verdict, telling, smokes, sweeps)[:_SENTENCES]),
        expected=tuple(_expected(answers, smokes, sweeps)),
        actual=tuple(_actual(verdict, telling, smokes, sweeps)),
        commands=tuple(dict.fromkeys(_commands(smokes, sweeps))),
        profile=tuple(_profile(smokes, sweeps)),
    )


def _predicted(known: Sequence[Mapping[str, Any]]) -> Issue:
    """Predictions of ``fit`` alone: nothing was started, so nothing failed."""
    said = [f"{pair(f)}: {verdict_words(f)}" for f in known]
    shown = [f"Prediction of vllm-doctor fit, nothing was started. {said[0]}.", *(f"{s}." for s in said[1:])]
    more = len(said) - _SENTENCES
    profile: list[tuple[str, str]] = []
    for one in known:
        model, vllm = part(one, "model"), part(one, "vllm")
        for name, value in (
            ("model", model.get("given") or model.get("name")),
            ("card", part(one, "gpu").get("name")),
            ("vLLM", vllm.get("version")),
        ):
            if value:
                profile.append((name, str(value)))
    commands = [shell(argv) for f in known if isinstance(argv := part(f, "settings").get("argv"), list)]
    return Issue(
        kind="best-practice report",
        summary=(*shown[:_SENTENCES], *([f"{more} more are listed below."] if more > 0 else [])),
        expected=("vLLM behaves as predicted below when it is started.",),
        actual=tuple(f"Predicted, not measured: {s}" for s in said),
        commands=tuple(dict.fromkeys(commands)),
        profile=tuple(dict.fromkeys(profile)),
    )


def _kind(verdict: str, findings: Sequence[Mapping[str, Any]]) -> str:
    if not findings:
        return "best-practice report" if verdict == "ready" else "runtime failure"
    first = findings[0]
    if first.get("id") in _QUALITY:
        return "quality regression"
    if first.get("severity") == "degrades":
        return "performance regression"
    return "build failure" if first.get("area") in _BUILD_AREAS else "runtime failure"


def _summary(verdict: str, findings: Sequence[Mapping[str, Any]], smokes: Sequence[Mapping[str, Any]],
             sweeps: Sequence[Mapping[str, Any]]) -> list[str]:  # fmt: skip
    out = [f"vllm-doctor says {verdict}."]
    for smoke in smokes:
        server = smoke.get("server") or {}
        state = server.get("state") or "not started"
        version = f" {server['vllm']}" if server.get("vllm") else ""
        out.append(f"A server of vLLM{version} with {_name(server.get('model'))} was asked; its state: {state}.")
    for sweep in sweeps:
        rows = _rows(sweep)
        ran = sum(1 for r in rows if r.get("outcome") == "ok")
        out.append(f"{ran} of {len(rows)} starts with different settings served and were measured.")
    out += [_sentence(f) for f in findings[:2]]
    if not findings:
        out.append("Nothing was found that stops or slows it.")
    if len(findings) > 2:
        out.append(f"{len(findings) - 2} more findings are listed below.")
    return out


def _expected(answers: Sequence[Mapping[str, Any]], smokes: Sequence[Mapping[str, Any]],
              sweeps: Sequence[Mapping[str, Any]]) -> list[str]:  # fmt: skip
    out = []
    for smoke in smokes:
        failed = [p for p in dicts(smoke.get("probes")) if p.get("status") == "fail"]
        for probe in failed:
            wanted = ", ".join(f"{k}: {v}" for k, v in (probe.get("expected") or {}).items())
            out.append(f"{probe.get('name')} passes" + (f" ({wanted})" if wanted else ""))
        if not failed:
            out.append("The server starts, and every probe of the smoke test passes.")
    for sweep in sweeps:
        for row in _rows(sweep):
            known = row.get("predicted") or {}
            if row.get("outcome") != "ok" and known.get("fits") is not False:
                tokens = known.get("kv_tokens")
                pool = f", with a KV pool of {tokens:,} tokens as predicted" if isinstance(tokens, int) else ""
                out.append(f"{row.get('label')}: it starts{pool}")
        if not out:
            out.append("Every start serves, with the KV pool that was predicted.")
    if not smokes and not sweeps and answers:
        out.append("vLLM can be started on this machine.")
    return out


def _actual(verdict: str, findings: Sequence[Mapping[str, Any]], smokes: Sequence[Mapping[str, Any]],
            sweeps: Sequence[Mapping[str, Any]]) -> list[str]:  # fmt: skip
    out = []
    for smoke in smokes:
        out += [
            f"{p.get('name')} fails: {p.get('why')}"
            for p in dicts(smoke.get("probes"))
            if p.get("status") == "fail"
        ]
    for sweep in sweeps:
        out += [
            f"{r.get('label')}: {r.get('outcome')}: {r.get('why')}"
            for r in _rows(sweep)
            if r.get("outcome") != "ok"
        ]
    if not out:
        out += [_sentence(f) for f in findings] or [f"The verdict is {verdict}."]
    return out


def _commands(smokes: Sequence[Mapping[str, Any]], sweeps: Sequence[Mapping[str, Any]]) -> list[str]:
    out = []
    for smoke in smokes:
        server = smoke.get("server") or {}
        if server.get("argv"):
            out.append(shell(server["argv"], server.get("env")))
    for sweep in sweeps:
        rows = [r for r in _rows(sweep) if r.get("argv")]
        failed = [r for r in rows if r.get("outcome") != "ok"]
        # one command shows the form of all: the table has what differs
        out += [shell(r["argv"], r.get("env")) for r in (failed[:3] or rows[:1])]
    return out


def _profile(smokes: Sequence[Mapping[str, Any]], sweeps: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    out = []
    for smoke in smokes:
        server = smoke.get("server") or {}
        for label, key in (("model", "model"), ("architecture", "architecture"), ("vLLM", "vllm"),
                           ("torch", "torch"), ("device", "device"), ("URL", "url")):  # fmt: skip
            if server.get(key):
                out.append((label, str(server[key])))
    for sweep in sweeps:
        setup = sweep.get("setup") or {}
        models = dict.fromkeys(str(r.get("model")) for r in _rows(sweep))
        out.append(("model", ", ".join(models) or "none"))
        card_bytes = setup.get("card_bytes")
        memory = f", {card_bytes / 2**30:.2f} GiB" if isinstance(card_bytes, int) else ""
        for label, value in (
            ("vLLM", setup.get("vllm")),
            ("card", f"{setup['card']}{memory}" if setup.get("card") else ""),
            ("CPU", setup.get("cpu")),
            ("gpu-memory-utilization", setup.get("utilization")),
        ):
            if value:
                out.append((label, str(value)))
    return list(dict.fromkeys(out))


def _sentence(finding: Mapping[str, Any]) -> str:
    text = str(finding.get("summary") or finding.get("title") or finding.get("id")).strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _name(model: Any) -> str:
    return str(model or "a model").rstrip("/").rpartition("/")[2]


def _rows(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    return dicts(sweep.get("rows"))
