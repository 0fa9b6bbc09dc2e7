"""Checks of parallel sizes, from what the serving probe reads and from known flags."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from doctor.facts import PythonFacts, ServingFacts
from doctor.finding import Confidence, Severity
from doctor.host import serving as serving_probe
from doctor.host.examine import Options
from doctor.snapshot import Snapshot
from tests.checks.test_container import GPU, HOST, one, silent, skipped
from tests.fakes import FakeHost


def served(tmp_path: Path, cards: int, fork: str | None = "", **env: str) -> Snapshot:
    fields = serving_probe.probe(FakeHost(tmp_path, env=env), Options())
    gpus = tuple(replace(GPU, index=i) for i in range(cards))
    return replace(HOST, gpus=gpus, python=PythonFacts(turing_fork=fork), serving=fields["serving"])


class TestParallel:
    ID = "tensor-parallel-exceeds-gpus"

    def test_more_ranks_than_cards(self, tmp_path: Path) -> None:
        serving = ServingFacts(tensor_parallel=2)
        finding = one(replace(HOST, serving=serving), self.ID)
        assert (finding.severity, finding.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
        assert "--tensor-parallel-size 1" in finding.fixes[0].summary
        hidden = ServingFacts(tensor_parallel=2, env={"CUDA_VISIBLE_DEVICES": "1"})
        two = replace(HOST, gpus=(GPU, replace(GPU, index=1)), serving=hidden)
        assert one(two, self.ID).confidence is Confidence.PROVEN
        silent(replace(two, serving=ServingFacts(tensor_parallel=2)), self.ID)

    @pytest.mark.parametrize("value", ["1", "0,1", " 0 , 3 "])
    def test_a_card_that_does_not_exist(self, tmp_path: Path, value: str) -> None:
        finding = one(served(tmp_path, 1, CUDA_VISIBLE_DEVICES=value), self.ID)
        assert finding.confidence is Confidence.HINT
        assert "CUDA_VISIBLE_DEVICES=0" in finding.fixes[0].summary

    @pytest.mark.parametrize("value", ["0", "", "-1", "GPU-00000000-0000", "0,", "--1", "9" * 30])
    def test_lists_that_are_fine_or_not_ours_to_judge(self, tmp_path: Path, value: str) -> None:
        silent(served(tmp_path, 1, CUDA_VISIBLE_DEVICES=value), self.ID)

    def test_nothing_known(self, tmp_path: Path) -> None:
        skipped(served(tmp_path, 1), self.ID)


class TestForkLauncher:
    ID = "single-card-launcher-defaults-tp2"

    @pytest.mark.parametrize(
        "env", [{"GPU_DEVICES": "0,1"}, {"TP_SIZE": "2"}, {"GPU_DEVICES": "0", "TP_SIZE": "2"}]
    )
    def test_two_cards_asked_of_one(self, tmp_path: Path, env: dict[str, str]) -> None:
        finding = one(served(tmp_path, 1, "0.1.17", **env), self.ID)
        assert (finding.severity, finding.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
        assert finding.fixes[0].commands == (("env", "GPU_DEVICES=0", "TP_SIZE=1", "./launcher.sh"),)

    def test_its_default_is_a_hint(self, tmp_path: Path) -> None:
        assert one(served(tmp_path, 1, "0.1.17"), self.ID).confidence is Confidence.HINT

    def test_silent(self, tmp_path: Path) -> None:
        silent(served(tmp_path, 1, "0.1.17", GPU_DEVICES="0", TP_SIZE="1"), self.ID)
        silent(served(tmp_path, 1, "0.1.17", CUDA_VISIBLE_DEVICES="0"), self.ID)
        silent(served(tmp_path, 2, "0.1.17", GPU_DEVICES="0,1"), self.ID)
        silent(served(tmp_path, 1, ""), self.ID)
        skipped(served(tmp_path, 1, None), self.ID)
