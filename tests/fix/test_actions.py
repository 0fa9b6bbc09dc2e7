"""Every action: done, verified, seen as done, taken back exactly; and what was changed since is kept."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doctor.fix import journal as journals
from doctor.fix.actions import KINDS, apt, docker_config, merge_ini, merge_json, merge_keyvalue
from doctor.fix.actions.install_package import InstallPackage
from doctor.fix.actions.move_aside import MoveAside
from doctor.fix.actions.write_file import WriteFile
from doctor.fix.errors import ActionError
from doctor.fix.journal import Journal
from doctor.fix.runner import Result, apply
from doctor.fix.undo import Undone, take_back
from tests.fix.machines import World, fails
from tests.fix.samples import DAEMON, HOST, SAMPLES


def undo(world: World) -> Undone:
    run = next(r for r in reversed(journals.all_runs(world.state)) if r.standing)
    book = Journal.reopen(run, world.state.calls)
    try:
        return take_back(world.machine, book)
    finally:
        book.close()


def do(world: World, name: str) -> Result:
    return apply(world.machine, [SAMPLES[name](world)], world.journal)


def test_there_is_a_sample_of_every_kind(tmp_path: Path) -> None:
    made = {make(World(tmp_path)).kind for make in SAMPLES.values()}
    assert set(KINDS) - made == {"manual", "update_package_lists"}


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "sudo"])
@pytest.mark.parametrize("name", SAMPLES)
def test_done_and_taken_back(tmp_path: Path, name: str, is_root: bool) -> None:
    world = World(tmp_path, is_root=is_root)
    action = SAMPLES[name](world)
    before = world.manifest()
    assert not action.already_done(world.machine)
    action.preview(world.machine)
    json.dumps(action.facts())
    assert world.manifest() == before
    result = apply(world.machine, [action], world.journal)
    assert (result.status, result.why) == ("applied", "")
    assert world.manifest() != before
    assert action.verify(world.machine) is None
    again = apply(world.machine, [action], world.journal)
    assert (again.status, again.exit_code) == ("nothing", 0)
    assert len(journals.all_runs(world.state)) == 1
    # a later doctor, with nothing but the journal
    later = World(tmp_path, is_root=is_root)
    later.daemon.takes_reload = world.daemon.takes_reload
    undone = undo(later)
    assert undone.complete, undone.problems
    assert later.manifest() == before
    assert journals.all_runs(later.state)[0].standing == []


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in ("install_package", "install_python")])
def test_taken_back_twice_is_taken_back_once(tmp_path: Path, name: str) -> None:
    world = World(tmp_path)
    action = SAMPLES[name](world)
    before = world.manifest()
    apply(world.machine, [action], world.journal)
    run = journals.all_runs(world.state)[0]
    entry = run.entries[0]
    for _ in range(2):
        assert not KINDS[entry.kind].revert(world.machine, run, entry.record, entry.after).kept
        assert world.manifest() == before


FILES = ("write_file", "new_file", "own_file", "merge_keyvalue", "merge_json", "merge_ini", "launch_profile",
         "sysctl", "docker_config")  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("edit", ["bytes", "mode", "removed"])
def test_what_the_user_changed_since_is_kept(tmp_path: Path, name: str, edit: str) -> None:
    world = World(tmp_path)
    action = SAMPLES[name](world)
    assert isinstance(action, WriteFile)
    path = Path(action.path)
    original = path.read_bytes() if path.exists() else None
    apply(world.machine, [action], world.journal)
    if edit == "bytes":
        path.write_bytes(path.read_bytes() + b"\n# mine\n")
    elif edit == "mode":
        path.chmod(0o604)
    else:
        path.unlink()
    edited = path.read_bytes() if path.exists() else None
    undone = undo(world)
    assert (path.read_bytes() if path.exists() else None) == edited
    if edit == "removed" and original is None:
        assert undone.complete  # it is as it was
        return
    assert not undone.complete
    why = undone.problems[0][1]
    assert str(path) in why
    if original is None:
        assert "there was no such file before" in why
    else:
        place = Path(why.rpartition("the original is in ")[2])
        assert place.read_bytes() == original


def test_undo_goes_on_past_what_it_cannot_take_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    first, second, third = (SAMPLES[n](world) for n in ("merge_json", "merge_ini", "merge_keyvalue"))
    assert isinstance(first, WriteFile)
    assert isinstance(second, WriteFile)
    assert isinstance(third, WriteFile)
    was = [Path(a.path).read_bytes() for a in (first, third)]
    apply(world.machine, [first, second, third], world.journal)
    Path(second.path).write_text("mine\n")
    undone = undo(world)
    assert [e.action for e in undone.reverted] == ["merge_keyvalue", "merge_json"]
    assert [e.action for e, _ in undone.problems] == ["merge_ini"]
    assert [Path(a.path).read_bytes() for a in (first, third)] == was
    assert Path(second.path).read_text() == "mine\n"


def test_a_folder_of_ours_with_something_of_theirs_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    do(world, "new_file")
    world.put("etc/new/theirs", "x")
    undone = undo(world)
    assert undone.complete
    assert undone.notes == (f"{world.path('etc/new')} stays, it is in use",)
    assert not Path(world.path("etc/new/deep")).exists()


def test_a_file_changed_since_the_plan_is_not_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    action = SAMPLES["merge_json"](world)
    world.put("home/x.json", "{}")
    result = apply(world.machine, [action], world.journal)
    assert (result.status, result.exit_code) == ("rolled-back", 4)
    assert "has changed since the plan" in result.why
    assert Path(world.path("home/x.json")).read_text() == "{}"


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    world = World(tmp_path)
    real = world.put("home/real.json", "{}")
    Path(world.path("home/link.json")).symlink_to(real)
    with pytest.raises(ActionError, match="symbolic link"):
        merge_json.MergeJson.merge(HOST, world.path("home/link.json"), {"a": 1}, id="a", summary="a")
    action = WriteFile(id="a", summary="a", path=world.path("home/link.json"), content=b"x", original=b"{}")
    assert "is a link" in apply(world.machine, [action], world.journal).why


# ------------------------------------------------------------------ merging


def test_json_keeps_keys_order_and_indentation() -> None:
    text = merge_json.merged(
        "f", DAEMON.encode(), {"runtimes": {"nvidia": {"path": "x"}}, "features": {"cdi": True}}
    )
    assert list(json.loads(text)) == ["log-driver", "features", "dns", "runtimes"]
    assert json.loads(text)["features"] == {"containerd-snapshotter": True, "cdi": True}
    assert b'\n  "log-driver"' in text
    assert merge_json.merged("f", b'{\n\t"a": 1\n}', {"b": 2}) == b'{\n\t"a": 1,\n\t"b": 2\n}\n'
    assert merge_json.merged("f", b'{"a":1}', {"a": 1}) == b'{"a":1}', "nothing to change, nothing changed"
    assert json.loads(merge_json.merged("f", None, {"a": 1})) == {"a": 1}


@pytest.mark.parametrize("text", [b"{", b"[1]", b'{"a": 1, "a": 2}', b"\xff\xfe{"])
def test_what_is_no_json_object_is_not_merged(text: bytes) -> None:
    with pytest.raises(ActionError):
        merge_json.merged("f", text, {"b": 1})


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        (b'{"a": [1, 2,], // why\n "b": "http://x/*y*/,}",\n}', {"a": [1, 2], "b": "http://x/*y*/,}"}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{\n# note\n"a": 1, /* c */ }', {"a": 1}),
        (b'{"a": 1', None),
        (b"{'a': 1}", None),
        (b'{"a": 1, "a": 2,}', None),
    ],
)
def test_only_slips_are_repaired(broken: bytes, repaired: object) -> None:
    answer = merge_json.repaired(broken)
    assert (json.loads(answer) if answer is not None else None) == repaired


def test_keyvalue_keeps_the_rest() -> None:
    text = b"# c\r\nexport A=1\r\nA=2\r\nB='x'\r\n"
    assert merge_keyvalue.merged(text, {"A": "3", "C": "4"}) == b"# c\r\nexport A=1\r\nA=3\r\nB='x'\r\nC=4\r\n"
    assert merge_keyvalue.merged(b"A=1", {"A": None}) == b""
    assert merge_keyvalue.parse("export A='1'\n# B=2\nC=3 \n") == {"A": "1", "C": "3"}


def test_ini_finds_the_section() -> None:
    text = b"[Boot]\ncommand=x\n\n[user]\ndefault=a\n"
    assert merge_ini.merged(text, "boot", {"systemd": "true"}) == (
        b"[Boot]\ncommand=x\nsystemd=true\n\n[user]\ndefault=a\n"
    )
    assert merge_ini.merged(b"[boot]\nSystemd = false\n", "boot", {"systemd": "true"}) == b"[boot]\nsystemd=true\n"
    assert merge_ini.merged(None, "boot", {"systemd": "true"}) == b"[boot]\nsystemd=true\n"


# ------------------------------------------------------------------ packages


def test_only_what_was_added_is_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    do(world, "install_package")
    assert set(world.apt.installed()) == {"base-files", "gcc-12", "g++-12", "libstdc++-12-dev", "libc6-dev"}
    assert undo(world).complete
    assert set(world.apt.installed()) == {"base-files", "gcc-12"}


def test_a_package_that_something_else_needs_since_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    do(world, "install_package")
    world.apt.apt_get(("apt-get", "-y", "install", "other-dev"))
    undone = undo(world)
    assert set(world.apt.installed()) == {"base-files", "gcc-12", "libc6-dev", "other-dev"}
    assert "libc6-dev is needed by something installed since" in undone.problems[0][1]


def test_a_dependency_that_the_user_asked_for_since_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    do(world, "install_package")
    data = world.apt.db.load()
    data["manual"].append("libstdc++-12-dev")
    world.apt.db.save(data)
    assert not undo(world).complete
    assert set(world.apt.installed()) == {"base-files", "gcc-12", "libc6-dev", "libstdc++-12-dev"}


def test_nothing_is_installed_when_apt_would_remove_something(tmp_path: Path) -> None:
    world = World(tmp_path)
    action = InstallPackage(id="evil", summary="x", root=True, names=("evil",))
    result = apply(world.machine, [action], world.journal)
    assert (result.status, "would remove base-files" in result.why) == ("rolled-back", True)
    assert "evil" not in world.apt.installed()


@pytest.mark.parametrize("name", ["g++-12*", "-o", "a b", "^g", "gcc?", "", "../x.deb"])
def test_no_patterns_and_no_options_as_names(name: str) -> None:
    with pytest.raises(ActionError, match="not the name of a package"):
        apt.checked([name])


def test_every_install_is_asked_first_and_removes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    do(world, "install_package")
    calls = [c for c in world.ran if c[0].endswith("apt-get")]
    assert "-s" in calls[0]
    assert "install" in calls[0]
    assert "--no-remove" in calls[1]
    assert "-s" not in calls[1]


def test_what_apt_says_is_read() -> None:
    text = """NOTE: This is only a simulation!
Inst libc6 [2.36-9+deb12u9] (2.36-9+deb12u10 Debian:12.11/stable [amd64])
Inst libc6-dev (2.36-9+deb12u10 Debian:12.11/stable [amd64])
Inst libfoo:i386 (1.0 Debian:12.11/stable [i386])
Remv old [1.0]
Purg older [2.0]
Conf libc6 (2.36-9+deb12u10 Debian:12.11/stable [amd64])
"""
    found = apt.parse(text)
    assert found.new == {"libc6-dev": "2.36-9+deb12u10", "libfoo:i386": "1.0"}
    assert found.upgraded == {"libc6": "2.36-9+deb12u9"}
    assert found.removed == ("old", "older")


# ------------------------------------------------------------------ moving, docker


def test_a_lock_taken_since_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    action = SAMPLES["move_aside"](world)
    assert isinstance(action, MoveAside)
    apply(world.machine, [action], world.journal)
    Path(action.path).write_text("new build")
    undone = undo(world)
    assert Path(action.path).read_text() == "new build"
    assert "there is a new" in undone.problems[0][1]
    assert Path(undone.problems[0][1].rpartition(" is ")[2]).exists()


def test_the_nvidia_runtime_is_registered_without_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    data = world.daemon.db.load()
    world.daemon.db.save({**data, "containers": ["theirs"]})
    assert do(world, "docker_config").status == "applied"
    assert world.daemon.db.load()["containers"] == ["theirs"]
    assert not any("restart-docker" in c for c in world.ran)
    document = json.loads(Path(world.path("etc/docker/daemon.json")).read_text())
    assert {k: document[k] for k in json.loads(DAEMON)} == json.loads(DAEMON)


def test_a_restart_that_would_stop_containers_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.daemon.db.save({**world.daemon.db.load(), "containers": ["theirs"]})
    action = SAMPLES["docker_restart"](world)
    before = world.manifest()
    result = apply(world.machine, [action], world.journal)
    assert "would stop 1 running containers (theirs)" in result.why
    assert result.exit_code == 4
    assert world.manifest() == before


def test_a_daemon_that_does_not_return_is_brought_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    action = SAMPLES["docker_restart"](world)
    world.daemon.refuses = True
    before = Path(world.path("etc/docker/daemon.json")).read_bytes()
    result = apply(world.machine, [action], world.journal)
    assert (result.status, "did not come back" in result.why) == ("rolled-back", True)
    assert Path(world.path("etc/docker/daemon.json")).read_bytes() == before
    assert world.daemon.db.load()["up"]


def test_a_configuration_that_dockerd_refuses_is_never_in_place(tmp_path: Path) -> None:
    world = World(tmp_path)
    action = SAMPLES["docker_config"](world)
    before = world.manifest()
    world.before = lambda argv: fails(argv, 1, "unable to configure") if argv[0] == "dockerd" else None
    result = apply(world.machine, [action], world.journal)
    assert "dockerd refuses the new configuration" in result.why
    assert world.manifest() == before
    assert not any("reload-docker" in c for c in world.ran)


def test_an_old_dockerd_that_cannot_validate_is_no_obstacle(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.before = lambda argv: fails(argv, 125, "unknown flag: --validate") if argv[0] == "dockerd" else None
    assert do(world, "docker_config").status == "applied"


def test_how_the_daemon_is_told() -> None:
    reload, restart = docker_config.control(True, "12", True)
    assert (reload[1:], restart[1:]) == (("reload", "docker"), ("restart", "docker"))
    reload, restart = docker_config.control(False, "12", True)
    assert (reload[1:], restart[1:]) == (("-HUP", "12"), ("docker", "restart"))
    assert docker_config.control(False, "", False) == ((), ())


# ------------------------------------------------------------------ Python packages


def test_python_packages_go_back_to_what_they_were(tmp_path: Path) -> None:
    world = World(tmp_path)
    do(world, "install_python")
    have = world.pip.db.load()
    assert (have["transformers"], have["tokenizers"]) == ("4.57.0", "0.22.0")
    world.pip.db.save({**have, "tokenizers": "0.23.0"})
    undone = undo(world)
    assert world.pip.db.load() == {
        "vllm": "0.26.0",
        "transformers": "5.0.0",
        "numpy": "2.2.0",
        "tokenizers": "0.23.0",
    }
    assert "tokenizers 0.23.0 was installed since" in undone.problems[0][1]


# ------------------------------------------------------------------ root


def test_root_steps_get_a_clean_environment(tmp_path: Path) -> None:
    world = World(tmp_path, is_root=False)
    do(world, "install_package")
    sudo = [(c, e) for c, e in zip(world.ran, world.environments, strict=True) if c[0] == "/usr/bin/sudo"]
    assert sudo
    for command, env in sudo:
        assert command[1:5] == ("-n", "--", "/usr/bin/env", "-i")
        assert set(env) <= {"PATH", "LC_ALL", "DEBIAN_FRONTEND"}
    assert any("DEBIAN_FRONTEND=noninteractive" in c for c, _ in sudo)
    assert all("LD_PRELOAD" not in e for e in world.environments)


def test_what_is_shown_is_what_is_run(tmp_path: Path) -> None:
    for is_root in (True, False):
        world = World(
            tmp_path / str(is_root) if (tmp_path / str(is_root)).mkdir() is None else tmp_path, is_root=is_root
        )
        action = SAMPLES["install_package"](world)
        shown = action.preview(world.machine).commands
        apply(world.machine, [action], world.journal)
        assert set(shown) <= set(world.ran)


def test_without_sudo_nothing_is_changed(tmp_path: Path) -> None:
    world = World(tmp_path, is_root=False, sudo=False)
    actions = [SAMPLES["own_file"](world), SAMPLES["install_package"](world)]
    before = world.manifest()
    result = apply(world.machine, actions, world.journal)
    assert (result.exit_code, "there is no sudo here" in result.why) == (4, True)
    assert world.manifest() == before
    assert journals.all_runs(world.state) == []


def test_a_program_of_a_killed_run_is_waited_for(tmp_path: Path) -> None:
    """SIGKILL reaches the doctor, not the package manager that it started."""
    world = World(tmp_path)
    slept: list[float] = []
    world.machine.sleep = lambda s: (slept.append(s), child.wait(timeout=20))  # type: ignore[assignment,func-returns-value]
    argv = [sys.executable, "-c", "import time; time.sleep(3)", "marker", str(tmp_path)]
    child = subprocess.Popen(argv)
    deadline = time.monotonic() + 2
    while str(tmp_path) not in Path(f"/proc/{child.pid}/cmdline").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    world.machine.outlive(argv)
    assert slept
    assert child.returncode == 0
    world.machine.outlive(argv)
    assert len(slept) == 1


def test_downloads_that_a_cut_off_apt_left_are_taken_away(tmp_path: Path) -> None:
    world = World(tmp_path)
    theirs = world.put("var/cache/apt/archives/libc6-dev_12.2_amd64.deb", "theirs")
    other = world.put("var/cache/apt/archives/g++-12_11.0_amd64.deb", "another version")
    do(world, "install_package")
    ours = Path(world.put("var/cache/apt/archives/g++-12_12.2_amd64.deb", "left"))
    assert undo(world).complete
    assert not ours.exists()
    assert Path(theirs).exists()
    assert Path(other).exists()
