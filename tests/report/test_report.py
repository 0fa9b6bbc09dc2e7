"""``vllm-doctor report``: what is in it, that it leaks nothing, that a real browser shows it."""

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main
from doctor.report import html, markdown
from doctor.report.document import build
from doctor.report.parts import Bars
from tests.report import samples

#: Thirty things that must not leave, each in a form that people's logs and answers have.
SECRETS = {
    "hf": "hf_" + "aB3" * 12, "hf-org": "api_org_" + "Zq9" * 11, "github": "ghp_" + "x7Y" * 12,
    "github-fine": "github_pat_" + "k2L" * 10, "gitlab": "glpat-" + "m4N" * 8, "openai": "sk-" + "p0Q" * 12,
    "nvidia": "nvapi-" + "r5S" * 12, "slack": "xoxb-" + "1234567890" * 3, "npm": "npm_" + "t6U" * 12,
    "pypi": "pypi-" + "v8W" * 12, "aws": "AKIA" + "IOSFODNN7EXAMPL2", "google": "AIza" + "y1Z" * 12,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMQ", "bearer": "t0k3nB34r3rV4lu3",
    "url-password": "hunter2pass", "url-user": "deploybot", "json-password": "c0rrecthorse",
    "shell-secret": "s3cr3tvalu3", "api-key": "k3yk3yk3y42", "access-key": "wJalrXUtnFEMIbPxRfi",
    "cookie": "sessionid99887766", "passphrase": "openS3same77", "auth-key": "tskey77889900",
    "option-token": "opt10nt0k3n", "mail": "petra.muster@example.org", "home": "/home/petramuster",
    "windows-home": "Users\\petramuster", "uuid": "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "mac": "52:54:00:ab:cd:ef", "address": "93.184.216.34",
}  # fmt: skip
KEY_BODY = "MIIEpAIBAAKCAQEA7bq"


def _lines() -> list[str]:
    s = SECRETS
    plain = [s[k] for k in ("hf", "hf-org", "github", "github-fine", "gitlab", "openai", "nvidia", "slack", "npm")]
    plain += [s[k] for k in ("pypi", "aws", "google", "jwt", "mail", "uuid", "mac")]
    return [
        *(f"loading with {p} from cache" for p in plain),
        f"Authorization: Bearer {s['bearer']}",
        f"pip index https://{s['url-user']}:{s['url-password']}@pkg.internal/simple",
        f'{{"password": "{s["json-password"]}"}}',
        f"export MY_SECRET={s['shell-secret']} OPENAI_API_KEY={s['api-key']}",
        f"aws_secret_access_key = {s['access-key']}",
        f"Cookie: {s['cookie']}",
        f"SSH_PASSPHRASE={s['passphrase']} TS_AUTH_KEY='{s['auth-key']}'",
        f"vllm serve --hf-token {s['option-token']}",
        f"reading {s['home']}/models/q9 and C:\\{s['windows-home']}\\q9",
        f"peer {s['address']} connected",
    ]


def _answer() -> dict[str, Any]:
    lines = _lines()
    finding = {
        "id": "server-died-while-loading", "severity": "blocker", "confidence": "proven",
        "title": "The server ended before it answered", "summary": " ".join(lines[:6]), "cause": lines[6],
        "evidence": [{"fact": "line", "value": line, "source": f"{SECRETS['home']}/log"} for line in lines],
        "fixes": [{"summary": lines[7], "commands": [["hf", "download", "--token", SECRETS["option-token"]]]}],
        "symptoms": [{"title": lines[8]}],
    }  # fmt: skip
    server = {
        "argv": ["vllm", "serve", f"{SECRETS['home']}/models/q9", f"--hf-token={SECRETS['option-token']}"],
        "env": {"MY_TOKEN": SECRETS["shell-secret"], "X": lines[9]},
        "vllm": "0.26.0", "model": f"{SECRETS['home']}/models/q9", "state": "died",
        "phases": [{"phase": "spawning", "at_s": 0.0}],
    }  # fmt: skip
    shapes = [{"shape": "short prompt", "first_s": 2.9, "later_s": [0.1, 0.2], "usual_s": 0.15}]
    probes = [
        {"name": "liveness", "status": "fail", "why": line, "measured": {}, "expected": {}} for line in lines
    ] + [
        {"name": "first_requests", "status": "pass", "why": "", "measured": {"shapes": shapes}},
        {"name": "prefix_cache", "status": "pass", "why": "",
         "measured": {"ttft_s": [3.3, 0.7], "cached_tokens": [0, 544]}},
        {"name": "mtp_speed", "status": "pass", "why": "", "measured": {"tokens_per_s": {"base": 52.0}}},
    ]  # fmt: skip
    return {
        "schema_version": 1, "command": "smoke", "verdict": "blocked", "findings": [finding], "passed": [],
        "skipped": [{"id": "needle", "why": lines[10]}], "waived": [],
        "smoke": {"server": server, "probes": probes, "settings_that_passed": {"env": {"A": SECRETS["hf"]}}},
    }  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, str, str]:
    """(page, its text, the Markdown) of an answer full of secrets with a log beside it."""
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "smoke.json").write_text(json.dumps(_answer()))
    # the page shows the end only: 80 lines, with a key that begins before them
    key = ["-----BEGIN RSA PRIVATE KEY-----", *[KEY_BODY] * 100, "-----END RSA PRIVATE KEY-----"]
    (saved / "server.log").write_text(
        "\n".join([*key, *_lines(), "```", "the end </pre><script>alert(1)</script>"])
    )
    lines = _lines()
    leaky = samples.refused() | {
        "label": lines[0], "why": " ".join(lines), "model": f"{SECRETS['home']}/models/q9",
        "argv": ["vllm", "serve", f"{SECRETS['home']}/q9", "--hf-token", SECRETS["option-token"]],
        "env": {"MY_TOKEN": SECRETS["shell-secret"], "X": lines[9]}, "key": "abcdef0123456789",
    }  # fmt: skip
    leaky["findings"] = [{**leaky["findings"][0], "id": "cuda-out-of-memory", "summary": " ".join(lines)}]
    rows = [*samples.plan(), samples.row(8192, 1, **leaky)]
    (saved / "sweep.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (saved / "logs").mkdir()
    (saved / "logs" / "server-abcdef0123456789.log").write_text("\n".join([*key, *lines]))
    files = [str(saved / "smoke.json"), str(saved / "sweep.jsonl")]
    assert main(["report", *files, "--out", str(tmp_path / "out")]) == 0
    page = tmp_path / "out" / "vllm-doctor-report.html"
    return page, page.read_text(), page.with_suffix(".md").read_text()


def test_thirty_secrets_and_none_leaks(written: tuple[Path, str, str]) -> None:
    _, page, text = written
    assert len(SECRETS) == 30
    planted = json.dumps(_answer()) + "\n".join(_lines())
    for name, secret in SECRETS.items():
        assert json.dumps(secret)[1:-1] in planted, name  # each one is really there to be found
    for output in (page, text):
        unescaped = output.replace("\\_", "_").replace("&#64;", "@").replace("\\\\", "\\")
        leaked = [n for n, s in SECRETS.items() if s in output or s in unescaped]
        assert leaked == []
        assert KEY_BODY not in output
        assert "<user>" in output.replace("&lt;", "<").replace("&gt;", ">")


class _Page(HTMLParser):
    """Tags in balance, nothing that loads or runs."""

    void = ("meta", "br", "rect", "line", "polyline", "circle")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not {"src", "href", "onload", "onclick"} & {a for a, _ in attrs}
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(written: tuple[Path, str, str]) -> None:
    _, page, _ = written
    parser = _Page()
    parser.feed(page)
    assert parser.open == []
    assert not {"script", "link", "img", "iframe"} & set(parser.seen)
    assert parser.seen.count("svg") == 3 + 4  # of the smoke test; of the sweep
    assert "default-src 'none'" in page
    assert "alert(1)" in page  # shown as text
    assert "http://" not in page.replace("http://127.0.0.1", "")


def test_the_markdown_is_ready_to_paste(written: tuple[Path, str, str]) -> None:
    _, _, text = written
    assert text.startswith("### Issue Type\n\nruntime failure\n")
    headings = re.findall(r"^### (.*)$", text, re.M)
    assert headings == ["Issue Type", "Summary", "Reproduction Steps", "Expected", "Actual",
                        "Exact Command / Profile / Model", "Environment and topology", "Logs"]  # fmt: skip
    assert "vllm-doctor says blocked." in text
    assert "vllm serve" in text.split("### Exact Command")[1]
    assert "| first token" not in text
    # the log holds a fence of three, so its own is longer and closed
    fences = re.findall(r"^(`{4,})", text, re.M)
    assert fences
    assert len(fences) % 2 == 0
    log = text.split(fences[0])[1]
    assert "the end </pre><script>" in log
    assert "vllm serve" in text.split("### Reproduction Steps")[1]
    assert "server-abcdef0123456789.log" in text.split("### Logs")[1]
    assert "@" not in re.sub(r"(?ms)^\s*(`{3,})\w*$.*?^\s*\1$", "", text)  # nobody is mentioned
    assert "| short prompt | 2.9 | 0.15 |" in text


def test_a_snapshot_and_an_answer_give_the_same_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from doctor.facts import SystemFacts
    from doctor.snapshot import Snapshot, dumps

    saved = tmp_path / "snapshot.json"
    saved.write_text(
        dumps(Snapshot(system=SystemFacts(os_name="Ubuntu 24.04 LTS", kernel="6.6.87.2-microsoft-standard-WSL2")))
    )
    assert main(["report", str(saved), "--markdown", "-"]) == 0
    text = capsys.readouterr().out
    assert "| host | Ubuntu 24.04 LTS · kernel 6.6.87.2-microsoft-standard-WSL2 |" in text
    main(["check", "--from", str(saved), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert all(f"`{f['id']}`" in text for f in answer["findings"])
    assert f"vllm-doctor says {answer['verdict']}." in text


def test_predicted_beside_measured() -> None:
    fit = {
        "verdict": "ready",
        "fit": {
            "weights_bytes": 11 * 2**30,
            "kv": {"block_size": 544},
            "first_start": {
                "available_kv_bytes": [9 * 2**30, 10 * 2**30, 11 * 2**30],
                "kv": {"capacity_tokens": 143_652},
            },
            "later_starts": {"kv": {"capacity_tokens": 172_909}},
        },
    }
    smoke = {
        "verdict": "degraded",
        "smoke": {"server": {"kv_tokens": 143_652, "block_size": 544, "available_kv_gib": 9.18}},
    }
    text = markdown.render(build([fit, smoke]))
    assert "vllm-doctor says degraded." in text
    assert "| KV pool (tokens), first start | 143,652 | 143,652 |" in text
    assert "| KV pool (GiB), first start | 9 to 11 | 9.18 |" in text
    assert "weights" not in text.split("#### Predicted and measured")[1]  # vLLM's figure is not known


FITS = Path(__file__).parents[1] / "memory/configs"


@pytest.mark.parametrize(
    ("model", "heading", "row"),
    [
        ("qwen3.5-9b-awq", "fits", "| answer | fits |"),
        ("qwen3.5-27b", "does not fit", "| answer | does not fit: the weights alone exceed"),
    ],
)
def test_a_prediction_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, heading: str, row: str
) -> None:
    asked = ["fit", str(FITS / model), "--gpu", "2080 ti", "--vram", "22", "--max-model-len", "8K", "--json"]
    main(asked)
    answer = json.loads(capsys.readouterr().out)
    saved = tmp_path / "fit.json"
    saved.write_text(json.dumps(answer))
    assert main(["report", str(saved), "--markdown", "-"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("### Issue Type\n\nbest-practice report\n")
    assert "Prediction of vllm-doctor fit, nothing was started." in text
    assert row in text
    assert "can be started on this machine" not in text
    for figure in (
        answer["fit"]["settings"]["gpu_memory_utilization"],
        answer["fit"]["start_check"]["max_utilization"],
    ):
        assert f"| {figure} |" in text
    assert f"| {answer['fit']['decode_ceiling_tokens_per_s']:.4g} |" in text
    if answer["fit"]["fits"]:
        assert (
            f"| KV pool (tokens), later starts | {answer['fit']['later_starts']['kv']['capacity_tokens']:,} |"
            in text
        )
    assert "vllm serve" in text.split("### Exact Command / Profile / Model")[1]
    again = shlex.split(text.split("```sh\n")[1].splitlines()[0])
    assert main(again[1:]) in (0, 2)
    repeated = json.loads(capsys.readouterr().out)["fit"]
    assert (repeated["fits"], repeated["kv"], repeated["utilization"]) == tuple(
        answer["fit"][k] for k in ("fits", "kv", "utilization")
    )
    assert main(["report", str(saved), "--html", "-"]) == 0
    assert f"vllm-doctor: {heading}</title>" in capsys.readouterr().out


@pytest.mark.parametrize("content", ['{"verdict": 1, "findings": 3}', '{"verdict": "ready", "findings": [1]}',
                                     '{"verdict": "fine", "findings": []}'])  # fmt: skip
def test_what_only_looks_like_an_answer_is_refused(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "x.json"
    saved.write_text(content)
    assert main(["report", str(saved), "--markdown", "-"]) == 3
    assert capsys.readouterr().err == (
        f"vllm-doctor: {saved} looks like an answer of --json, but its verdict or findings have another form\n"
    )


@pytest.mark.parametrize(
    "content", ["", "[]", "not json", '{"a": 1}'.replace("a", "schema_version").replace("1", '"x"')]
)
def test_other_files_are_refused_with_one_line(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "x.json"
    saved.write_text(content)
    assert main(["report", str(saved), "--markdown", "-"]) == 3
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert main(["report", str(tmp_path / "none"), "--markdown", "-"]) == 3


def test_a_path_inside_an_answer_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "private.txt"
    other.write_text("do not show this")
    answer = _answer()
    answer["smoke"]["server"]["log"] = str(other)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(json.dumps(answer))
    assert main(["report", str(tmp_path / "in" / "a.json"), "--html", "-"]) == 0
    assert "do not show" not in capsys.readouterr().out


def test_bars_without_figures() -> None:
    document = build([{"verdict": "ready"}])
    document.bars.append(Bars("t", "s", ("a",), (("x", (None,)), ("y", (0.0,)))))
    assert "<svg" in html.render(document)
    assert "| x | – |" in markdown.render(document)


def _written(folder: Path, capsys: pytest.CaptureFixture[str], name: str, content: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    assert main(["report", str(folder / name), "--markdown", "-"]) == 0
    return capsys.readouterr().out


def test_a_sweep_as_an_issue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _written(tmp_path, capsys, "sweep.jsonl", "".join(json.dumps(r) + "\n" for r in samples.plan()))
    assert text.startswith("### Issue Type\n\nperformance regression\n")
    assert "19 of 20 starts with different settings served and were measured." in text
    label = "Qwen3.5-9B-AWQ, 256K, MTP 2, 1 sequence, 2,048 batched"
    expected, actual = text.split("### Expected")[1].split("### Actual")
    assert f"- {label}: it starts, with a KV pool of 114,966 tokens as predicted" in expected
    assert f"- {label}: refused: One request of 262,144 tokens" in actual
    assert "--max-model-len 262144" in text.split("### Exact Command")[1]
    steps = text.split("### Reproduction Steps")[1].split("### Expected")[0]
    assert "--axes context,sequences,batched --context 8192,16384,32768,65536,131072,262144 --mtp 0,2" in steps
    assert "--sequences 1,2,3,4 --batched 1024,2048,4096,8192 --util 0.8" in steps
    assert "| card | NVIDIA GeForce RTX 2080 Ti, 21.42 GiB |" in text
    assert "#### Predicted and measured: vLLM 0.26.0 on NVIDIA GeForce RTX 2080 Ti" in text
    assert "| Qwen3.5-9B-AWQ, 8K, MTP 0, 1 sequence, 2,048 batched | later | 189,757 (179,847 to 197,847)" in text
    assert "| context length, tokens | without MTP | without MTP, predicted | MTP 2 | MTP 2, predicted |" in text
    assert "| 262,144 | – | – | – | 114,966 |" in text
    assert "Not known: there is no answer of `check`" in text


def test_rows_of_two_machines_are_two_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = samples.row(8192, 2, setup={**samples.SETUP, "card": "NVIDIA H200"}, setup_id="other", key="b" * 16)
    rows = [samples.row(8192, 2), other, samples.row(16384, 2)]
    text = _written(tmp_path, capsys, "sweep.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    tables = re.findall(r"#### Sweep: (.*)\n\n(?:\|.*\n){2}((?:\|.*\n)+)", text)
    assert [(name, body.count("\n")) for name, body in tables] == [
        ("vLLM 0.26.0 on NVIDIA GeForce RTX 2080 Ti", 2), ("vLLM 0.26.0 on NVIDIA H200", 1),
    ]  # fmt: skip
    assert text.startswith("### Issue Type\n\nbest-practice report\n")


def test_a_half_written_row_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.dumps(samples.row(8192, 2)) + "\n"
    text = _written(tmp_path, capsys, "sweep.jsonl", whole + whole[:200])
    assert text.count("| Qwen3.5-9B-AWQ | 8,192 |") == 1


@pytest.mark.parametrize(
    ("finding", "kind"),
    [
        ({"id": "gxx12-missing", "area": "compiler", "severity": "blocker"}, "build failure"),
        ({"id": "torch-abi-mismatch", "area": "python", "severity": "blocker"}, "build failure"),
        ({"id": "mtp-corrupts-output", "area": "serving", "severity": "degrades"}, "quality regression"),
        ({"id": "mtp-slower-than-baseline", "area": "model", "severity": "degrades"}, "performance regression"),
        ({"id": "cuda-out-of-memory", "area": "memory", "severity": "blocker"}, "runtime failure"),
        ({"id": "nofile-limit-low", "area": "host", "severity": "note"}, "best-practice report"),
    ],
)
def test_the_type_follows_from_the_first_finding(finding: dict[str, str], kind: str) -> None:
    verdict = "ready" if finding["severity"] == "note" else "blocked"
    document = build([{"verdict": verdict, "findings": [{**finding, "summary": "It is so"}]}])
    assert markdown.render(document).startswith(f"### Issue Type\n\n{kind}\n\n### Summary\n")


def test_the_environment_says_how_many_cards_and_how_they_are_attached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from doctor.facts import GpuFacts
    from doctor.snapshot import Snapshot, dumps

    card = GpuFacts(
        0, "NVIDIA GeForce RTX 2080 Ti", pcie_gen=1, pcie_gen_max=3, pcie_width=16, pcie_width_max=16,
        display_active=True,
    )  # fmt: skip
    text = _written(tmp_path, capsys, "snapshot.json", dumps(Snapshot(gpus=(card,))))
    shown = text.split("### Environment and topology")[1]
    assert "| topology | 1 GPU<br>0: PCIe generation 1 of 3 x16 of x16, a display is attached |" in shown
    (tmp_path / "sweep.jsonl").write_text(json.dumps(samples.row(8192, 2)) + "\n")
    assert main(["report", str(tmp_path / "sweep.jsonl"), "--check", "--markdown", "-"]) == 0
    assert "| host | " in capsys.readouterr().out.split("### Environment and topology")[1]


def test_prediction_ladder_and_concurrency_of_a_smoke_test() -> None:
    smoke = {
        "server": {"kv_tokens": 143_652, "available_kv_gib": 9.18, "weights_gib": 10.87},
        "prediction": {
            "weights_bytes": int(10.9 * 2**30),
            "first_start": {"kv_bytes": [9 * 2**30] * 3, "kv_tokens": [140_000, 143_000, 150_000]},
            "later_start": {"kv_bytes": [11 * 2**30] * 3, "kv_tokens": [172_909] * 3},
        },
        "ladder": {
            "passed": True,
            "steps": [
                {"changes": ["without MTP"], "passed": False, "why": "no memory", "seconds": 61.2},
                {"changes": ["without MTP"], "passed": True, "again": True, "why": None, "seconds": 40.0},
            ],
        },
        "probes": [
            {"name": "concurrency", "status": "pass", "why": "", "measured": {
                "levels": [{"at_once": n, "total_tokens_per_s": 70.0 * n} for n in (1, 3)]}},
        ],
    }  # fmt: skip
    text = markdown.render(build([{"verdict": "ready", "smoke": smoke}]))
    assert "| KV pool (tokens), first start | 143,000 (140,000 to 150,000) | 143,652 |" in text
    assert "| KV pool (tokens), later starts | 172,909 | 143,652 |" in text
    assert "| weights (GiB) | 10.9 | 10.87 |" in text
    assert "#### Ladder: a configuration passed" in text
    assert "| fail | without MTP | 61.2 | no memory |" in text
    assert "| pass | without MTP (second start) | 40 |" in text
    assert "| 3 at once | 210 |" in text
