"""Checks of driver, GPU and memory on facts of every shape: they judge or abstain, they never crash."""

from __future__ import annotations

import dataclasses
import random
import typing
from typing import Any

import pytest

from doctor.checks.registry import judge, registered
from doctor.facts import DriverFacts, GpuFacts, GpuProcess, KernelEvent, PythonFacts, SystemFacts, WslFacts
from doctor.finding import Finding
from doctor.snapshot import Snapshot, dumps, loads

MINE = ("doctor.checks.driver", "doctor.checks.cuda", "doctor.checks.gpu", "doctor.checks.memory")
WORDS = ("", "580.159.03", "13.0", "0", "ok", "DriverNotLoaded", "Unknown", "NoAnswer", "LibraryNotFound", "sm_90",
         "/usr/local/cuda/compat/libcuda.so.1", "NVIDIA GeForce RTX 2080 Ti", "7.5", "x.y",
         "\ufffd", "9" * 400)  # fmt: skip


def value(hint: Any, generator: random.Random) -> Any:
    """Some value of a type, None where that is allowed."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in arguments:
        if generator.random() < 0.35:
            return None
        return value(next(a for a in arguments if a is not type(None)), generator)
    if origin is tuple:
        return tuple(value(arguments[0], generator) for _ in range(generator.randint(0, 2)))
    if origin is not None:  # a mapping of strings
        return {
            k: generator.choice(WORDS)
            for k in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
            if generator.random() < 0.5
        }
    if dataclasses.is_dataclass(hint):
        return facts(typing.cast(type, hint), generator)
    return {
        str: generator.choice(WORDS),
        int: generator.choice((0, 1, 2, 7, 79, 804, 1 << 30, 22528 << 20, 1 << 45)),
        bool: generator.random() < 0.5,
        float: generator.choice((0.0, 0.5, 250.0, 1e9)),
    }[hint]


def facts(cls: type, generator: random.Random) -> Any:
    """A facts object with every field drawn."""
    hints = typing.get_type_hints(cls)
    drawn = {f.name: value(hints[f.name], generator) for f in dataclasses.fields(cls) if f.name != "sources"}
    return cls(**drawn)


@pytest.mark.parametrize("seed", range(3))
def test_no_check_crashes_and_every_finding_can_be_shown(seed: int) -> None:
    generator = random.Random(seed)
    mine = [c for c in registered() if c.function.__module__ in MINE]
    assert len(mine) > 20
    for _ in range(60):
        gpus = tuple(
            dataclasses.replace(facts(GpuFacts, generator), index=i) for i in range(generator.randint(0, 3))
        )
        snapshot = Snapshot(
            origin=generator.choice(("host", "evidence")),
            deep=generator.random() < 0.5,
            inside_image=generator.random() < 0.1,
            driver=generator.choice((None, facts(DriverFacts, generator))),
            gpus=generator.choice((None, gpus)),
            python=generator.choice((None, facts(PythonFacts, generator))),
            system=generator.choice((None, facts(SystemFacts, generator))),
            wsl=generator.choice((None, facts(WslFacts, generator))),
        )
        judgement = judge(snapshot, mine)
        crashed = [s.why for s in judgement.skipped if "the check itself failed" in s.why]
        assert crashed == []
        assert all(isinstance(f, Finding) and f.summary and f.evidence for f in judgement.findings)
        assert judge(loads(dumps(snapshot)), mine).findings == judgement.findings  # a saved file judges alike


def test_the_drawing_reaches_nested_facts() -> None:
    drawn = facts(DriverFacts, random.Random(3))
    assert isinstance(drawn, DriverFacts)
    assert isinstance(facts(KernelEvent, random.Random(1)), KernelEvent)
    assert isinstance(facts(GpuProcess, random.Random(1)), GpuProcess)
