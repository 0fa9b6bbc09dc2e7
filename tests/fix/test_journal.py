from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.finding import Risk
from doctor.fix import journal as journals
from doctor.fix.actions.write_file import WriteFile
from doctor.fix.journal import Entry, Journal
from doctor.fix.runner import apply
from doctor.fix.state import State, place
from tests.fix.machines import Tracer, World


def write(
    world: World, name: str = "etc/a.conf", text: bytes = b"new\n", original: bytes | None = b"old\n"
) -> WriteFile:
    return WriteFile(
        id=f"write_file:{name}", summary=f"Write {name}", risk=Risk.SAFE, path=world.path(name), content=text,
        original=original,
    )  # fmt: skip


def test_the_order_of_writes_survives_a_power_loss(tmp_path: Path) -> None:
    """Prior bytes, journal line, file, journal line: each on the disk before the next begins."""
    trace = Tracer()
    world = World(tmp_path, calls=trace)
    target = world.put("etc/a.conf", "old\n", 0o640)
    apply(world.machine, [write(world)], world.journal)
    run = journals.all_runs(world.state)[0]
    log = str(run.folder / "journal.jsonl")
    kept = str(run.kept(journals.digest(b"old\n")))
    names = {log: "journal", kept: "kept copy", target: "target", str(run.folder / "kept"): "kept folder",
             str(Path(target).parent): "target folder", str(run.folder): "run folder",
             str(world.state.runs): "runs folder"}  # fmt: skip

    def short(call: tuple[str, str]) -> str:
        what, path = call
        if " -> " in path:
            temporary, final = path.split(" -> ")
            assert os.path.dirname(temporary) == os.path.dirname(final)
            return f"rename to {names[final]}"
        for full, name in names.items():
            if path.startswith(f"{os.path.dirname(full)}/.{os.path.basename(full)}.vllm-doctor-"):
                return f"{what} temporary of {name}"
        return f"{what} {names.get(path, '?')}"

    seen = [s for s in map(short, trace.calls) if "?" not in s]
    header = [
        "create journal",
        "write journal",
        "fsync journal",
        "fsync folder run folder",
        "fsync folder runs folder",
    ]
    keep = ["create temporary of kept copy", "write temporary of kept copy", "fchmod temporary of kept copy",
            "fsync temporary of kept copy", "rename to kept copy", "fsync folder kept folder"]  # fmt: skip
    line = ["write journal", "fsync journal"]
    change = ["create temporary of target", "write temporary of target", "fchmod temporary of target",
              "fsync temporary of target", "rename to target", "fsync folder target folder"]  # fmt: skip
    seen = [s for s in seen if s not in ("mkdir run folder", "mkdir kept folder", "mkdir runs folder")]
    assert seen == [*header, *keep, *line, *change, *line, *line]  # the last line is the end of the run


def test_a_line_is_on_the_disk_before_its_step_begins(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("etc/a.conf", "old\n", 0o640)

    class Looks(WriteFile):
        kind = "write_file"

        def apply(self, machine, record):  # type: ignore[no-untyped-def]
            run = journals.all_runs(world.state)[0]
            assert [e.outcome for e in run.entries] == [None]
            prior = run.entries[0].record["prior"]
            assert (prior["kind"], prior["mode"], prior["uid"]) == ("file", 0o640, os.getuid())
            assert run.kept_bytes(prior["sha256"]) == b"old\n"
            return super().apply(machine, record)

    action = Looks(id="a", summary="a", path=world.path("etc/a.conf"), content=b"x", original=b"old\n")
    assert apply(world.machine, [action], world.journal).status == "applied"


def made(world: World) -> Journal:
    book = world.journal()
    for step in (1, 2):
        entry = Entry(step, f"a{step}", "write_file", f"step {step}", {"path": "/x"}, ("cause",))
        book.begin(entry)
        book.done(entry, {"n": step})
    book.close()
    return book


@pytest.mark.parametrize("cut", range(2, 60, 7))
def test_a_torn_last_line_is_ignored_and_closed(tmp_path: Path, cut: int) -> None:
    world = World(tmp_path)
    run = made(world).run
    path = run.folder / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    read = journals.read(run.folder)
    assert [e.outcome for e in read.entries] == ["done", None]
    assert read.damaged == 0
    again = Journal.reopen(read, world.state.calls)
    again.end("settled")
    again.close()
    last = journals.read(run.folder)
    assert (last.ended, last.damaged) == ("settled", 0)
    assert [e.outcome for e in last.entries] == ["done", None]


def test_a_journal_cut_anywhere_can_be_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    run = made(world).run
    path = run.folder / "journal.jsonl"
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        read = journals.read(run.folder)
        assert read.damaged == 0
        assert len(read.entries) == sum(b'"begin"' in line for line in whole[:length].split(b"\n")[:-1])


def test_a_failed_write_leaves_no_line_that_hides_the_next(tmp_path: Path) -> None:
    world = World(tmp_path)
    book = world.journal()
    entry = Entry(1, "a", "write_file", "s", {})
    book.begin(entry)
    real = book._calls.write

    def short(fd: int, data: bytes) -> None:
        real(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    book._calls.write = short  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space"):
        book.done(entry, {})
    book._calls.write = real  # type: ignore[method-assign]
    book.reverted(entry, "reverted", "")
    book.close()
    read = journals.read(book.run.folder)
    assert ([e.outcome for e in read.entries], read.damaged) == (["reverted"], 0)


def test_unknown_lines_and_fields_of_a_later_minor_are_ignored(tmp_path: Path) -> None:
    run = made(World(tmp_path)).run
    with (run.folder / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"v": 1, "type": "weather", "sun": True}) + "\n")
        file.write(json.dumps({"v": 1, "type": "end", "how": "done", "more": [1]}) + "\n")
    assert journals.read(run.folder).ended == "done"


def test_a_newer_journal_is_refused_by_name(tmp_path: Path) -> None:
    run = made(World(tmp_path)).run
    with (run.folder / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"v": 2, "type": "end", "how": "done"}) + "\n")
    with pytest.raises(DoctorError, match="newer vllm-doctor"):
        journals.read(run.folder)


def test_a_journal_of_version_1_stays_readable() -> None:
    """A recorded file: what this reader must read for ever."""
    run = journals.read(Path(__file__).parent / "data" / "20261130T110020Z-5c1ae0")
    assert run.status() == "undone"
    assert [(e.kind, e.outcome) for e in run.entries] == [("install_package", "reverted")]
    assert run.entries[0].record["new"]["g++-12"]


def test_a_damaged_line_is_counted(tmp_path: Path) -> None:
    run = made(World(tmp_path)).run
    path = run.folder / "journal.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[2] = b'{"v":1,"type":"do'
    path.write_bytes(b"\n".join(lines))
    assert journals.read(run.folder).damaged == 1


def test_kept_bytes_are_checked(tmp_path: Path) -> None:
    world = World(tmp_path)
    book = world.journal()
    name = book.keep(b"precious")
    assert book.run.kept_bytes(name) == b"precious"
    assert book.run.kept(name).stat().st_mode & 0o777 == 0o600
    book.run.kept(name).write_bytes(b"other")
    with pytest.raises(ValueError, match="damaged"):
        book.run.kept_bytes(name)


# ------------------------------------------------------------------ the folder


def test_where_the_state_is() -> None:
    assert place({"XDG_STATE_HOME": "/x"}, 0) == Path("/var/lib/vllm-doctor")
    assert place({"XDG_STATE_HOME": "/x", "HOME": "/h"}, 1000) == Path("/x/vllm-doctor")
    assert place({"XDG_STATE_HOME": "relative", "HOME": "/h"}, 1000) == Path("/h/.local/state/vllm-doctor")


def test_a_linked_state_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to("real")
    with pytest.raises(DoctorError, match="symbolic link"):
        State(tmp_path / "state").make()
    (tmp_path / "real" / "runs").symlink_to(tmp_path)
    with pytest.raises(DoctorError, match="symbolic link"):
        State(tmp_path / "real").make()


def test_a_strangers_state_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    with pytest.raises(DoctorError, match="belongs to uid"):
        State(tmp_path / "state", uid=os.getuid() + 1).make()


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    with pytest.raises(DoctorError, match="written by others"):
        State(tmp_path / "state").make()


def test_a_linked_journal_is_not_read(tmp_path: Path) -> None:
    run = made(World(tmp_path)).run
    path = run.folder / "journal.jsonl"
    path.rename(run.folder / "elsewhere")
    path.symlink_to("elsewhere")
    with pytest.raises(DoctorError, match="cannot read"):
        journals.read(run.folder)


def test_one_at_a_time(tmp_path: Path) -> None:
    state = World(tmp_path).state
    with (
        state.lock(),
        pytest.raises(DoctorError, match=f"another repair or undo is running .pid {os.getpid()}"),
        state.lock(),
    ):
        pass
    with state.lock():
        pass


def test_no_journal_no_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("etc/a.conf", "old\n")
    world.state.make()

    def full(what: str, path: str) -> None:
        if path.endswith("journal.jsonl"):
            raise OSError(28, "No space left on device")

    world.state.calls = Tracer(full)
    with pytest.raises(DoctorError, match="nothing was changed"):
        apply(world.machine, [write(world)], world.journal)
    assert Path(world.path("etc/a.conf")).read_text() == "old\n"
