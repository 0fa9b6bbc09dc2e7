"""``vllm-doctor report``: what is in it, that it leaks nothing, that a real browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main
from doctor.report import html, markdown
from doctor.report.document import Bars, build

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
    assert main(["report", str(saved / "smoke.json"), "--out", str(tmp_path / "out")]) == 0
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

    void = ("meta", "br", "rect")

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
    assert parser.seen.count("svg") == 3
    assert "default-src 'none'" in page
    assert "alert(1)" in page  # shown as text
    assert "http://" not in page.replace("http://127.0.0.1", "")


def test_the_markdown_is_ready_to_paste(written: tuple[Path, str, str]) -> None:
    _, _, text = written
    assert text.startswith("## vllm-doctor: blocked\n")
    assert "| first token" not in text
    # the log holds a fence of three, so its own is longer and closed
    fences = re.findall(r"^(`{4,})", text, re.M)
    assert len(fences) == 2
    log = text.split(fences[0])[1]
    assert "the end </pre><script>" in log
    assert "vllm serve" in text.split("### Reproduce")[1]
    assert "@" not in re.sub(r"(?s)```.*?```", "", text)  # nobody is mentioned
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
    assert f"vllm-doctor: {answer['verdict']}" in text


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
    assert text.startswith("## vllm-doctor: degraded")
    assert "| KV pool (tokens), first start | 143,652 | 143,652 |" in text
    assert "| KV pool (GiB), first start | 9 to 11 | 9.18 |" in text
    assert "weights" not in text  # vLLM's figure is not known


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


def test_a_real_browser_shows_it(written: tuple[Path, str, str], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on PATH")
    shot = tmp_path / "page.png"
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,1400", f"--screenshot={shot}",
            "--dump-dom", written[0].as_uri(),
        ],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 'class="verdict blocked"' in done.stdout
    assert done.stdout.count("<svg") == 3
    assert shot.stat().st_size > 20_000
