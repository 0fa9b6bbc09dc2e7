"""Snapshots survive the way to JSON and back; what does not fit is refused with its path."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.codec import DecodeError, decode, encode
from doctor.facts import Compiler, GpuFacts, GpuProcess, SystemFacts, ToolchainFacts, WslFacts
from doctor.snapshot import Event, ProbeStatus, Snapshot, SnapshotError, dumps, loads

FULL = Snapshot(
    taken_at="2026-11-30T10:00:00Z",
    system=SystemFacts(os_id="ubuntu", cpu_flags=(), in_container=False, sources={"os_id": "/etc/os-release"}),
    wsl=WslFacts(version=2, wslconfig={"memory": "8GB"}),
    toolchain=ToolchainFacts(compilers=(Compiler("/usr/bin/gcc-12", "gcc-12", major=12, cc1plus_ok=False),)),
    gpus=(GpuFacts(index=0, total_bytes=23622320128, processes=(GpuProcess(7, used_bytes=1),)),),
    events=(Event("uva", "a.log:3", line=3, values={"x": "y"}),),
    probes=(ProbeStatus("system", "ok", 0.01),),
)


def test_snapshot_round_trip() -> None:
    assert loads(dumps(FULL)) == FULL


def test_unknown_and_known_empty_stay_apart() -> None:
    assert loads(dumps(FULL)).system.cpu_flags == ()
    assert loads(dumps(Snapshot(system=SystemFacts()))).system.cpu_flags is None


def test_json_answer_that_carries_a_snapshot_is_read() -> None:
    answer = {"schema_version": 1, "command": "check", "snapshot": json.loads(dumps(FULL))}
    assert loads(json.dumps(answer)) == FULL


def test_keys_of_a_later_doctor_are_ignored() -> None:
    data = json.loads(dumps(FULL))
    data["gpus"][0]["invented_later"] = {"a": [1]}
    data["another_domain"] = {}
    assert loads(json.dumps(data)) == FULL


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "a snapshot is a JSON object"),
        ('{"schema_version": 99, "origin": "host"}', "newer than this doctor reads"),
        ('{"schema_version": 1}', "no facts found"),
        ('{"gpus": [{"index": "zero"}]}', "$.gpus[0].index: expected int, got str"),
        ('{"gpus": [{}]}', "key 'index' is missing"),
        ('{"system": {"cpu_count": true}}', "expected a number, got a boolean"),
        ('{"system": {"sources": []}}', "expected an object"),
        ('{"system": 3}', "$.system: expected an object"),
        ('{"system": {"os_like": "debian"}}', "expected a list"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_bad_snapshots_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        loads(text, name="some.json")
    assert says in str(caught.value)
    assert str(caught.value).startswith("some.json: ")
    assert "\n" not in str(caught.value)


def test_evidence_names_value_and_source() -> None:
    proof = FULL.evidence("system.os_id")
    assert (proof.fact, proof.value, proof.source) == ("system.os_id", "ubuntu", "/etc/os-release")
    assert FULL.evidence("gpus[0].total_bytes").value == "23622320128"
    assert FULL.evidence("system.kernel").value == "not known"
    assert FULL.evidence("system.cpu_flags").value == "none"
    assert FULL.evidence("system.in_container").value == "no"
    with pytest.raises(AttributeError):
        FULL.evidence("system.no_such_field")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["gpus", "system", "wsl", "events", "probes", "origin"]), json_values))
def test_any_json_is_decoded_or_refused_never_a_crash(data: dict[str, object]) -> None:
    try:
        decoded = decode(Snapshot, data)
    except DecodeError as error:
        assert str(error).startswith("$")  # noqa: PT017  either outcome is right
    else:
        assert decode(Snapshot, encode(decoded)) == decoded
