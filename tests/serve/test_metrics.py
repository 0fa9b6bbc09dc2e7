"""Counters of /metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.serve import metrics

# captured from vLLM 0.32.0 on a CPU
TEXT = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 5.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="tiny"} 1.79603221654277e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="1"} 1.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 0.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny"} 7.0
vllm:cache_config_info{_block_size_resolved="True",block_size="544",kv_cache_layout="None",engine="0"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 2.0
process_open_fds 40.0
"""


def test_exact_names_and_labels() -> None:
    read = metrics.parse(TEXT)
    assert read.total(metrics.DRAFTS) == 5.0
    assert read.by(metrics.ACCEPTED_PER_POSITION, "position") == {"0": 3.0, "1": 1.0}
    assert read.total(metrics.PREFIX_HITS) == 0.0
    assert read.total("vllm:prefix_cache_hits") is None
    assert read.info(metrics.CACHE_CONFIG)["block_size"] == "544"
    assert read.total("process_open_fds") == 40.0
    assert read.bad_lines == 0
    assert not any(name.endswith("_created") for name in read.samples)


def test_engines_are_added() -> None:
    two = metrics.parse(f'{metrics.DRAFTS}{{engine="0"}} 5\n{metrics.DRAFTS}{{engine="1"}} 2\n')
    assert two.total(metrics.DRAFTS) == 7.0


def test_growth() -> None:
    early, late = metrics.parse(f"{metrics.DRAFTS} 5\n"), metrics.parse(f"{metrics.DRAFTS} 12\n")
    assert late.since(early, metrics.DRAFTS) == 7.0
    assert early.since(late, metrics.DRAFTS) is None  # the server was started again
    assert late.since(early, metrics.PREFIX_HITS) is None


def test_escapes_and_odd_values() -> None:
    read = metrics.parse('a{path="x\\"y,}\\\\z\\n"} NaN 1700000000\nb{} +Inf\n')
    assert read.info("a")["path"] == 'x"y,}\\z\n'
    assert read.total("b") == float("inf")


@pytest.mark.parametrize("line", ["<html>", "a{b=c} 1", 'a{b="c"', "a one", "1a 2", 'a{b="c"}'])
def test_lines_that_are_no_samples_are_counted(line: str) -> None:
    read = metrics.parse(f"{line}\nok 1\n")
    assert read.bad_lines == 1
    assert read.total("ok") == 1.0


@given(st.text(max_size=300))
def test_never_raises(text: str) -> None:
    metrics.parse(text)
