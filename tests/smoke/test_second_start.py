"""The first start after an empty compile cache and the one after it, on stub servers that compile once."""

from __future__ import annotations

from tests.smoke.test_run import Smoke, ids, probe


def test_quick_offers_it(smoke: Smoke) -> None:
    first = smoke("compiles")
    assert any("--full, which starts it twice" in n for n in first.notes)
    assert "second_start" not in [r.name for r in first.results]
    second = smoke("compiles")
    assert not any("starts it twice" in n for n in second.notes)


def test_full_starts_twice_and_reports_both(smoke: Smoke) -> None:
    # the servers of the comparison come before: here they are left out by random weights
    result = smoke("compiles", full=True, serve_args=("--load-format", "dummy"))
    one = probe(result, "second_start")
    assert one.status == "pass", one
    assert one.measured["first"] | {"ready_s": 0} == {"kv_tokens": 240_000, "available_kv_gib": 8.0, "ready_s": 0}
    assert one.measured["second"] | {"ready_s": 0} == {"kv_tokens": 300_000, "available_kv_gib": 9.5, "ready_s": 0}
    assert "KV cache 25.0 % larger: 300,000 tokens, 240,000 at the first start" in one.why
    again = smoke("compiles", full=True, serve_args=("--load-format", "dummy"))
    assert (probe(again, "second_start").status, probe(again, "second_start").asked) == ("abstain", False)
    assert "warm already" in probe(again, "second_start").why


def test_nothing_was_compiled(smoke: Smoke) -> None:
    result = smoke(full=True, serve_args=("--load-format", "dummy"))
    assert probe(result, "second_start").why == "nothing was compiled"


def test_a_second_start_that_fails_is_found(smoke: Smoke) -> None:
    result = smoke("no-again", full=True, ladder=False, serve_args=("--load-format", "dummy"))
    assert probe(result, "second_start").status == "fail"
    assert ids(result) == ["server-died-while-loading"]
    assert result.best is None
