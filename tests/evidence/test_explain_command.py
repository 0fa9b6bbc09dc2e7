"""The command itself: exit codes, the JSON contract, secrets, pages, and agreement with check --from."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from doctor import catalogue
from doctor.cli import main
from tests.cases.support import handed

FILES = {c.name: c.path for c in handed() if c.path}


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = main([*argv, "--json"])
    out, _ = capsys.readouterr()
    return code, json.loads(out)


def test_a_blocker_is_exit_2_and_json_has_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = answer(capsys, "explain", str(FILES["007-wsl2-util-095-windows-overhead.log"]))
    assert code == 2
    assert (data["schema_version"], data["command"], data["verdict"]) == (1, "explain", "blocked")
    first = data["findings"][0]
    assert first["id"] == "util-above-free-memory"
    assert "0.95 x 31.84 = 30.25 GiB asked, 30.12 free: 0.94 starts" in first["summary"]
    assert first["docs"] == "docs/troubleshooting.md#util-above-free-memory"
    assert first["evidence"][0]["source"] == "007-wsl2-util-095-windows-overhead.log:10"
    assert data["texts"][0]["kinds"][0]["kind"] == "vLLM log"
    assert data["snapshot"]["serving"]["vllm"] == "0.19.1"


def test_unknown_text_is_exit_1_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.log"
    file.write_text(
        "INFO 10-01 10:00:00 [core.py:69] hello\nFrobnicationError: the frobnicator is out of cheese\n"
    )
    assert main(["explain", str(file)]) == 1
    out, _ = capsys.readouterr()
    assert "not known" in out
    assert "out of cheese" in out
    assert "What to run next" in out


def test_engine_core_failed_is_never_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.log"
    file.write_text(
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    )
    code, data = answer(capsys, "explain", str(file))
    assert code == 1
    assert data["findings"] == []
    assert data["texts"][0]["telling"] == []


def test_healthy_start_is_exit_0_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.log"
    file.write_text(
        "INFO 10-01 10:00:00 [core.py:105] Initializing a V1 LLM engine (v0.26.0) with config: model='/m'\n"
        "INFO:     Application startup complete.\n"
    )
    assert main(["explain", str(file)]) == 0
    out, _ = capsys.readouterr()
    assert "healthy start" in out
    assert "0.26.0" in out


def test_misuse_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "absent.log")]) == 3
    assert main(["explain", str(tmp_path)]) == 3
    assert main(["explain", "no-such-cause"]) == 3
    _, err = capsys.readouterr()
    assert "absent.log" in err
    assert "neither a file nor a cause" in err


def test_page_of_a_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gxx12-missing"]) == 0
    out, _ = capsys.readouterr()
    entry = catalogue.cause("gxx12-missing")
    for text in (entry.title, entry.decisive[0][:40], entry.wrong_fixes[0][:40], "g++-12"):
        assert text in out.replace("\n", " ")
    code, data = answer(capsys, "explain", "gxx12-missing")
    assert (code, data["cause"]["id"]) == (0, "gxx12-missing")
    assert all(row["text"] in out.replace("\n  ", " ") for row in data["cause"]["messages"])
    assert "proven" in {row["confidence"] for row in data["cause"]["messages"]}


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = FILES["064-ver-undefined-symbol-parseSchema.log"]
    stream = io.TextIOWrapper(io.BytesIO(gzip.compress(path.read_bytes())))
    monkeypatch.setattr("sys.stdin", stream)
    code, data = answer(capsys, "explain", "-")
    assert (code, data["findings"][0]["id"]) == (2, "torch-abi-mismatch")
    assert data["texts"][0]["layers"] == ["gzip"]


def test_several_files_are_judged_together(capsys: pytest.CaptureFixture[str]) -> None:
    log, report = (
        FILES["065-ver-libcudart-13-missing.log"],
        FILES["083-jit-deepgemm-not-installed.collect_env.txt"],
    )
    code, data = answer(capsys, "explain", str(log), str(report))
    first = data["findings"][0]
    assert (code, first["id"], first["confidence"]) == (2, "vllm-torch-cuda-major-mismatch", "likely")
    assert "torch is built for CUDA 12.8" in first["summary"]


SECRETS = {
    "hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2": "HF_TOKEN={}",
    "anna.muster@example.org": "contact {} please",
    "muster-laptop-77": "anna@{}:~$ nvidia-smi: command not found",
    "/home/annamuster": "FileNotFoundError: {}/models",
    "1b2c3d4e-1111-2222-3333-444455556666": "GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-{})",
    "203.0.113.9": 'INFO:     {}:51234 - "POST /v1/completions HTTP/1.1" 200 OK',
    "sk-" + "live0123456789abcdefghij": "api_key='{}'",
}


def test_secrets_never_reach_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [form.format(secret) for secret, form in SECRETS.items()]
    file = tmp_path / "a.log"
    failures = [f"RuntimeError: something failed at {line}" for line in lines]
    file.write_text("\n".join([*lines, *failures]) + "\n", encoding="utf-8")
    for argv in (["explain", str(file)], ["explain", "-v", str(file)], ["explain", "--json", str(file)]):
        main(argv)
        out, err = capsys.readouterr()
        for secret in SECRETS:
            if secret not in (
                "muster-laptop-77",
                "203.0.113.9",
            ):  # a documentation address; a host that is not this one
                assert secret not in out + err, (argv, secret)


@pytest.mark.parametrize("name", sorted(n for n in FILES if n.endswith("collect_env.txt")))
def test_check_from_agrees_with_explain(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    explained = answer(capsys, "explain", str(FILES[name]))
    checked = answer(capsys, "check", "--from", str(FILES[name]))

    def findings(data: dict[str, Any]) -> set[tuple[str, str, str]]:
        return {(f["id"], f["confidence"], f["summary"]) for f in data["findings"]}

    assert explained[0] == checked[0]
    assert explained[1]["verdict"] == checked[1]["verdict"]
    assert findings(explained[1]) == findings(checked[1])


FREQUENT = (
    "001-wsl2-uva-v2-runner.log",
    "007-wsl2-util-095-windows-overhead.log",
    "016-jit-cc1plus-missing-gcc12.log",
    "017-jit-python-h-missing.log",
    "023-jit-no-c-compiler.log",
    "030-driver-too-old-12080-cu130-wheel.log",
    "035-arch-5090-sm120-old-torch.log",
    "042-mem-kv-max-seq-len-7344.log",
    "051-docker-unknown-runtime-nvidia.log",
    "060-nccl-shm-64m-docker.log",
    "062-ver-qwen3_5-not-recognized.log",
    "065-ver-libcudart-13-missing.log",
)


@pytest.mark.parametrize("name", FREQUENT)
def test_cause_in_three_lines_and_fix_in_the_next_five(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", str(FILES[name])])
    lines = capsys.readouterr().out.splitlines()
    case = next(c for c in handed() if c.name == name)
    assert catalogue.cause(case.expect[0][0][0]).title in " ".join(lines[:3]).replace("  ", " ")
    assert any(line.lstrip().startswith("1. ") for line in lines[1:6])


def test_harmless_warnings_are_named_harmless_with_v(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FILES["007-wsl2-util-095-windows-overhead.log"])
    main(["explain", path])
    assert "wsl2-pin-memory-off" not in capsys.readouterr().out
    main(["explain", "-v", path])
    assert "harmless" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [("a\nb\n", "2 lines"), ("a\nb", "2 lines"), ("a", "1 line"), ("", "0 lines"), ("\n", "1 line")],
)
def test_lines_are_counted_as_wc_does_and_an_open_one_too(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.log"
    file.write_text(text)
    main(["explain", str(file)])
    assert f"; {said}\n" in capsys.readouterr().out


def test_a_page_lists_messages_and_no_transcripts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "gxx12-missing"])
    page = capsys.readouterr().out
    assert "Messages of this cause:" in page
    assert "$ gcc-12 -print-prog-name" not in page
