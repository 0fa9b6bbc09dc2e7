"""The three commands as a person calls them, on a host whose findings are given."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctor import cli
from doctor.checks.registry import judge
from doctor.commands import fix as command
from doctor.facts import StorageFacts, SystemFacts
from doctor.fix import journal as journals
from doctor.fix import state as states
from doctor.fix.actions.manual import Manual
from doctor.fix.actions.move_aside import MoveAside
from doctor.fix.journal import Entry, Journal
from doctor.fix.plan import Plan
from doctor.fix.recheck import compare
from doctor.fix.runner import Result
from doctor.fix.state import State
from doctor.host.access import LocalHost
from doctor.report.fix_view import print_result
from doctor.snapshot import Snapshot

CAUSE = "flashqla-stale-build-lock"


class Place:
    """A folder with two locks, and a doctor that looks at nothing else."""

    def __init__(self, root: Path) -> None:
        self.locks = [root / f"cache/flash_qla_{n}/lock" for n in (1, 2)]
        for lock in self.locks:
            lock.parent.mkdir(parents=True)
            lock.write_text("")
        self.state = State(root / "state")

    def snapshot(self) -> Snapshot:
        return self.of(tuple(str(p) for p in self.locks if p.exists()))

    @staticmethod
    def of(locks: tuple[str, ...] | None) -> Snapshot:
        system = SystemFacts(os_id="debian", uid=os.getuid(), in_container=False)
        return Snapshot(system=system, storage=StorageFacts(stale_locks=locks, fresh_locks=()))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    it = Place(tmp_path)
    monkeypatch.setattr(states, "place", lambda env, uid: it.state.folder)

    def examine(host: Any, options: Any) -> Any:
        seen = it.snapshot()
        return seen, judge(seen, only=[CAUSE])

    monkeypatch.setattr(command, "_examine", examine)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115  not a terminal
    return it


Call = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str, as_json: bool = True) -> tuple[int, Any, str]:
        code = cli.main([*arguments, *(["--json"] if as_json else [])])
        out, err = capsys.readouterr()
        return code, (json.loads(out) if as_json and out else out), err

    return run


def test_a_plan_changes_nothing(place: Place, call: Call) -> None:
    code, answer, _ = call("fix")
    assert code == 0
    assert answer["command"] == "fix"
    assert answer["findings"][0]["id"] == CAUSE
    assert [a["kind"] for a in answer["plan"]["actions"]] == ["move_aside", "move_aside"]
    for key in ("id", "kind", "for", "summary", "commands", "risk", "root", "manual", "depends_on"):
        assert key in answer["plan"]["actions"][0]
    assert all(p.exists() for p in place.locks)
    assert not place.state.folder.exists()


def test_apply_undo_and_apply_again(place: Place, call: Call) -> None:
    code, answer, _ = call("fix", "--apply", "--yes")
    assert (code, answer["run"]["status"], answer["run"]["after"]["fixed"]) == (0, "applied", [CAUSE])
    assert not any(p.exists() for p in place.locks)
    code, answer, _ = call("fix", "--apply", "--yes")
    assert (code, answer["run"]["status"]) == (0, "nothing")
    assert len(journals.all_runs(place.state)) == 1
    code, answer, _ = call("history")
    assert [r["status"] for r in answer["runs"]] == ["applied"]
    code, answer, _ = call("undo", "--yes")
    assert (code, answer["complete"], len(answer["reverted"])) == (0, True, 2)
    assert all(p.exists() for p in place.locks)
    code, answer, _ = call("undo", "--yes")
    assert (code, answer["run"]) == (0, None)
    assert call("history")[1]["runs"][0]["status"] == "undone"
    assert call("fix", "--apply", "--yes")[1]["run"]["status"] == "applied"


def test_undo_that_keeps_something_ends_with_5(place: Place, call: Call) -> None:
    call("fix", "--apply", "--yes")
    place.locks[0].write_text("a new build")
    code, answer, _ = call("undo", "--yes")
    assert (code, answer["complete"]) == (5, False)
    assert "there is a new" in answer["problems"][0]["why"]
    assert (place.locks[0].read_text(), place.locks[1].exists()) == ("a new build", True)
    place.locks[0].unlink()
    assert call("undo", "--yes")[0] == 0, "what could not be taken back is tried again"
    assert place.locks[0].read_text() == ""


def test_without_a_terminal_yes_is_needed(place: Place, call: Call) -> None:
    for arguments in (("fix", "--apply"), ("undo",)):
        if arguments == ("undo",):
            call("fix", "--apply", "--yes")
        code, _, err = call(*arguments)
        assert (code, "--yes is needed" in err) == (3, True)


def test_one_finding_only(place: Place, call: Call) -> None:
    assert call("fix", "--only", "gxx12-missing")[1]["plan"]["actions"] == []
    code, _, err = call("fix", "--only", "no-such-thing")
    assert (code, "no check is called" in err) == (3, True)


def test_a_saved_plan_and_the_json_answer_are_both_plans(place: Place, call: Call, tmp_path: Path) -> None:
    answer = call("fix", "--save", str(tmp_path / "saved.json"))[1]
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert saved == answer["plan"]
    place.locks[1].unlink()
    for name in ("saved.json", "answer.json"):
        code, _, err = call("fix", "--apply", "--yes", "--plan", str(tmp_path / name))
        assert (code, "the facts have changed" in err) == (3, True)
    place.locks[1].write_text("")
    assert call("fix", "--apply", "--yes", "--plan", str(tmp_path / "answer.json"))[0] == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"plan": 1}', "\x00"])
def test_what_is_no_plan_is_refused(place: Place, call: Call, tmp_path: Path, text: str) -> None:
    (tmp_path / "p").write_text(text)
    assert call("fix", "--apply", "--yes", "--plan", str(tmp_path / "p"))[0] == 3
    assert all(p.exists() for p in place.locks)


def test_nothing_in_a_plan_file_is_run(place: Place, call: Call, tmp_path: Path) -> None:
    plan = call("fix")[1]["plan"]
    plan["actions"] = [{**plan["actions"][0], "commands": [["rm", "-rf", str(tmp_path / "cache")]]}]
    (tmp_path / "p").write_text(json.dumps(plan))
    assert call("fix", "--apply", "--yes", "--plan", str(tmp_path / "p"))[0] == 0
    assert (tmp_path / "cache").is_dir()
    assert not any(p.exists() for p in place.locks), "the plan that was made afresh is what was done"


def half_done(place: Place) -> journals.Run:
    """A run that was killed within its second step: the first lock moved and noted, the second moved and not."""
    place.state.make()
    book = Journal.start(place.state, {}, time.time() - 60)
    for step, lock in enumerate(place.locks, 1):
        seen = lock.stat()
        aside = f"{lock}.vllm-doctor-{book.run.id}"
        prior = {"kind": "file", "device": seen.st_dev, "inode": seen.st_ino}
        record = {"path": str(lock), "aside": aside, "root": False, "prior": prior}
        entry = Entry(step, f"move_aside:{lock}", "move_aside", f"Move {lock.parent.name}", record, (CAUSE,))
        book.begin(entry)
        lock.rename(aside)
        if step == 1:
            book.done(entry, {})
    book.close()
    return book.run


def test_the_next_run_says_what_was_left(place: Place, call: Call) -> None:
    run = half_done(place)
    code, out, _ = call("fix", as_json=False)
    assert code == 0
    assert f"Run {run.id}" in out
    assert "1 step finished; half-done: 'Move flash_qla_2'" in out
    assert f"vllm-doctor undo {run.id}" in out
    assert "vllm-doctor fix --apply" in out
    assert call("history")[1]["runs"][0]["status"] == "half-done"
    code, _, err = call("fix", "--apply")
    assert (code, "was cut off" in err) == (3, True)


def test_the_next_apply_finishes(place: Place, call: Call) -> None:
    run = half_done(place)
    code, answer, _ = call("fix", "--apply", "--yes")
    assert (code, answer["run"]["status"]) == (0, "applied")
    assert [len(a["id"]) > 0 for a in answer["run"]["actions"]] == [True]
    assert not any(p.exists() for p in place.locks)
    runs = journals.all_runs(place.state)
    assert [(r.id == run.id, r.unfinished) for r in runs] == [(True, False), (False, False)]
    assert call("undo", "--yes")[0] == 0
    assert call("undo", "--yes")[0] == 0
    assert all(p.exists() for p in place.locks)


def test_the_half_done_run_is_taken_back(place: Place, call: Call) -> None:
    run = half_done(place)
    assert call("undo", run.id, "--yes")[0] == 0
    assert all(p.exists() for p in place.locks)
    assert not call("history")[1]["runs"][0]["unfinished"]


def test_an_unknown_run(place: Place, call: Call) -> None:
    code, _, err = call("undo", "nonsense", "--yes")
    assert (code, "there is no run 'nonsense'" in err) == (3, True)


def test_what_people_see(place: Place, call: Call) -> None:
    _, out, _ = call("fix", as_json=False)
    assert out.startswith("2 steps to carry out. Nothing has been changed yet.")
    assert f"$ mv -nT -- {place.locks[0]} {place.locks[0]}.vllm-doctor-RUN" in out
    _, out, err = call("fix", "--apply", "--yes", as_json=False)
    assert "[1/2] Move the stale build lock aside" in err
    assert f"fixed: {CAUSE}" in out
    _, out, _ = call("history", as_json=False)
    assert "applied" in out
    _, out, _ = call("undo", "--yes", as_json=False)
    assert out.count("taken back:") == 2
    assert "Everything was taken back." in out
    assert "Nothing to take back." in call("undo", "--yes", as_json=False)[1]


def test_the_environment_file_counts_after_a_repair(tmp_path: Path) -> None:
    """The checks are run again as vLLM will see the machine, started with the file that was written."""
    host = LocalHost(env={"HOME": str(tmp_path), "PATH": "/usr/bin"})
    assert command._as_started(host) is host
    (tmp_path / ".config/vllm-doctor").mkdir(parents=True)
    (tmp_path / ".config/vllm-doctor/vllm.env").write_text("# c\nVLLM_WSL2_ENABLE_PIN_MEMORY=1\n")
    assert command._as_started(host).env["VLLM_WSL2_ENABLE_PIN_MEMORY"] == "1"


def test_unknown_is_not_fixed() -> None:
    before = judge(Place.of(("/x/flash_qla/lock",)), only=[CAUSE])
    plan = Plan((MoveAside(id="a", summary="a", causes=(CAUSE,), path="/x/flash_qla/lock"),), {}, "f")
    passed = compare(before, judge(Place.of(()), only=[CAUSE]), plan)
    assert (passed.fixed, passed.not_judged, passed.still_there) == ((CAUSE,), (), ())
    unknown = compare(before, judge(Place.of(None), only=[CAUSE]), plan)
    assert (unknown.fixed, unknown.not_judged, unknown.still_there) == ((), (CAUSE,), ())
    same = compare(before, before, plan)
    assert (same.fixed, same.not_judged, same.still_there) == ((), (), (CAUSE,))


@pytest.mark.parametrize(
    ("actions", "said"),
    [((), "nothing is left to do here"), ((Manual(id="m", summary="Restart"),), "is to be done by hand")],
)
def test_a_run_that_had_nothing_to_do(
    capsys: pytest.CaptureFixture[str], actions: tuple[Manual, ...], said: str
) -> None:
    print_result(Result("nothing"), None, Plan(actions, {}, "0" * 64))
    assert said in capsys.readouterr().out
