"""install.sh, run for real in a folder of its own: what it makes, what it refuses, what it says.

Most tests give it a Python that only pretends (a script that makes an environment in no time), so
that failures can be planned. One installs for real and needs a package registry.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

#: All that install.sh may take from PATH besides Python or uv.
TOOLS = (
    "sh cat cp mkdir rm ln mv df find sort cksum sed grep tail head date sleep id dirname readlink rmdir mktemp "
    "tr awk"
).split()

#: A Python that answers as planned by STUB_* variables. In an environment it stands for pip too.
PYTHON = """#!/bin/sh
case $1 in
    -) cat >/dev/null; echo "${STUB_PYTHON:-good 3.11} $0" ;;
    -c) exec "@REAL@" "$@" ;;
    -m)
        if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit; fi
        [ -z "${STUB_PIP_HANGS:-}" ] || { : >"$STUB_PIP_HANGS"; exec sleep 30; }
        [ -z "${STUB_PIP_SAYS:-}" ] || { printf '%s\\n' "$STUB_PIP_SAYS"; exit 1; }
        printf '%s\\n' "$*" >"${0%/*}/pip-arguments"
        cp "@DOCTOR@" "${0%/*}/vllm-doctor"
        ;;
esac
"""

DOCTOR = """#!/bin/sh
case $1 in
    --version) echo "vllm-doctor 0" ;;
    check) echo "verdict of the pretended doctor"; exit "${STUB_CHECK:-0}" ;;
esac
"""


@dataclass
class Stage:
    """A copy of the checkout, a HOME and a PATH that holds only what is put there."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("home", "tools", "tmp", "src"):
            (self.root / name).mkdir(parents=True)
        for tool in TOOLS:
            found = shutil.which(tool, path="/usr/bin:/bin:/usr/sbin:/sbin")
            if found is None:
                pytest.skip(f"this machine has no {tool}")
            (self.root / "tools" / tool).symlink_to(found)
        for name in ("install.sh", "pyproject.toml", "README.md", "LICENSE", "doctor", "docker"):
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, self.src / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, self.src / name)

    @property
    def src(self) -> Path:
        return self.root / "src"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def data(self) -> Path:
        return self.home / ".local/share/vllm-env-doctor"

    @property
    def link(self) -> Path:
        return self.home / ".local/bin/vllm-doctor"

    def tool(self, name: str, text: str) -> None:
        """Puts a program on PATH, in place of what is there."""
        place = self.root / "tools" / name
        place.unlink(missing_ok=True)
        place.write_text(text)
        place.chmod(0o755)

    def pretend_python(self) -> None:
        doctor = self.root / "doctor-stub"
        doctor.write_text(DOCTOR)
        doctor.chmod(0o755)
        self.tool("python3", PYTHON.replace("@REAL@", sys.executable).replace("@DOCTOR@", str(doctor)))

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": str(self.root / "tools"),
            "TMPDIR": str(self.root / "tmp"),
            **self.env,
            **(more or {}),
        }

    def run(
        self, *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(self.src / "install.sh"), *args],
            env=self.environment(env),
            cwd=cwd or self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def files(self) -> list[str]:
        """Everything below HOME, and what it has left in TMPDIR."""
        return sorted(str(p.relative_to(self.root)) for n in ("home", "tmp") for p in (self.root / n).rglob("*"))


@pytest.fixture
def bare(tmp_path: Path) -> Stage:
    """No Python at all."""
    return Stage(tmp_path / "stage")


@pytest.fixture
def stage(bare: Stage) -> Stage:
    """With the Python that pretends."""
    bare.pretend_python()
    return bare


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line of a failure; the one about root does not count."""
    lines = [line for line in done.stderr.splitlines() if "this installs for root" not in line]
    assert done.returncode == 1, done
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("install.sh: ")
    return lines[0]


# ------------------------------------------------------------------ what it says when it cannot


def test_help_and_misuse(bare: Stage) -> None:
    done = bare.run("--help")
    assert done.returncode == 0
    assert "--uninstall" in done.stdout
    assert bare.run("--nonsense").returncode == 2
    assert bare.run("--prefix").returncode == 2
    assert bare.run("--", "tests").returncode == 2
    assert bare.files() == []


def test_no_python(bare: Stage) -> None:
    assert "no python3 on PATH: install Python 3.10 or newer, or uv" in one_line(bare.run())
    bare.tool("apt-get", "#!/bin/sh\n")
    assert "sudo apt-get install python3 python3-venv" in one_line(bare.run())
    assert bare.files() == []


def test_python_too_old(stage: Stage) -> None:
    line = one_line(stage.run(env={"STUB_PYTHON": "old 3.9"}))
    assert "python3 is 3.9" in line
    assert "3.10 or newer" in line
    assert stage.files() == []


def test_newer_python_beside_an_old_one(stage: Stage) -> None:
    shutil.copy2(stage.root / "tools/python3", stage.root / "tools/python3.12")
    stage.tool("python3", "#!/bin/sh\ncat >/dev/null; echo old 3.9\n")
    done = stage.run(env={"STUB_PYTHON": "good 3.12"})
    assert done.returncode == 0
    assert "Python 3.12" in done.stdout


def test_no_venv_names_the_package(stage: Stage) -> None:
    stage.tool("apt-get", "#!/bin/sh\n")
    assert "sudo apt-get install python3.13-venv" in one_line(stage.run(env={"STUB_PYTHON": "bare 3.13"}))
    assert stage.files() == []


def test_the_real_question_to_python(bare: Stage) -> None:
    """What the pretending Python answers is what a real one answers."""
    bare.tool("python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    text = (bare.src / "install.sh").read_text()
    code = text.split("<<'CODE'\n")[1].split("\nCODE\n")[0]
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=30)
    kind, version, path = done.stdout.strip().split(" ", 2)
    assert kind in ("good", "bare")
    assert version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert path == sys.executable


def test_python_without_venv_is_served_by_uv(stage: Stage) -> None:
    stage.tool(
        "uv",
        '#!/bin/sh\nif [ "$1" = venv ]; then for last; do :; done; mkdir -p "$last/bin"; '
        f'cp "{stage.root}/tools/python3" "$last/bin/python"; '
        'else exec "$5" -m pip install "$6"; fi\n',
    )
    done = stage.run("--no-check", env={"STUB_PYTHON": "bare 3.11"})
    assert done.returncode == 0, done.stderr
    assert "(uv, Python 3.11)" in done.stdout
    assert stage.link.exists()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError("
            "'<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: "
            "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': "
            "/simple/setuptools/\n"
            "ERROR: Could not find a version that satisfies the requirement setuptools>=77 (from versions: none)\n"
            "ERROR: No matching distribution found for setuptools>=77",
            "Temporary failure in name resolution",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "free some room",
        ),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...'))\nERROR: x", "PIP_CERT"),
        ("ERROR: No matching distribution found for rich>=13.7", "found for rich>=13.7; check the network"),
        (
            "Traceback\n  ValueError: odd\n  [end of output]\n  note: this\nERROR: Failed building",
            "ValueError: odd",
        ),
    ],
)
def test_what_pip_said_last(stage: Stage, said: str, expected: str) -> None:
    line = one_line(stage.run(env={"STUB_PIP_SAYS": said}))
    assert expected in line
    log = Path(line.rpartition("(log: ")[2].rstrip(")"))
    assert said in log.read_text()
    assert not stage.data.exists(), "a failed first installation leaves nothing"
    assert not (stage.home / ".local").exists()


def test_no_room(stage: Stage) -> None:
    stage.tool("df", "#!/bin/sh\necho head\necho /dev/x 1000000 999000 1000 99% /home\n")
    line = one_line(stage.run())
    assert "only 0 MiB free under" in line
    assert "--prefix DIR" in line
    assert stage.files() == []


def test_home_is_unset_or_not_a_folder(stage: Stage) -> None:
    assert "HOME is not set" in one_line(stage.run(env={"HOME": ""}))
    (stage.root / "file").write_text("")
    line = one_line(stage.run(env={"HOME": str(stage.root / "file")}))
    assert "Not a directory" in line
    assert "--prefix DIR" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_home_is_read_only(stage: Stage) -> None:
    stage.home.chmod(0o555)
    assert "Permission denied" in one_line(stage.run())


@pytest.mark.parametrize("odd", ["a$b", 'a"b', "a`b", "a\\b", "a\nb"])
def test_paths_that_cannot_work_are_refused(stage: Stage, odd: str) -> None:
    one_line(stage.run("--prefix", str(stage.root / odd)))
    assert stage.files() == []


def test_sources_are_not_beside_the_script(stage: Stage) -> None:
    shutil.rmtree(stage.src / "doctor")
    assert "run it inside a checkout" in one_line(stage.run())


def test_script_through_a_pipe(stage: Stage) -> None:
    """``sh < install.sh`` says where it must be run; half of it does nothing at all."""
    lines = (stage.src / "install.sh").read_text().splitlines(keepends=True)
    assert lines[-1] == 'main "$@"\n'
    for part in ("".join(lines), "".join(lines[:-1])):
        done = subprocess.run(
            ["/bin/sh"],
            input=part,
            env=stage.environment(),
            cwd=stage.root,
            capture_output=True,
            text=True,
            timeout=30,
        )
        if part.endswith(lines[-1]):
            assert "run it inside a checkout" in one_line(done)
        else:
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert stage.files() == []


# ------------------------------------------------------------------ what it makes


def test_install_update_uninstall(stage: Stage) -> None:
    before = stage.files()
    done = stage.run()
    assert done.returncode == 0, done.stderr
    assert "verdict of the pretended doctor" in done.stdout
    assert stage.link.is_symlink()
    assert os.readlink(stage.link) == f"{stage.data}/current/bin/vllm-doctor"
    first = os.readlink(stage.data / "current")

    again = stage.run("--no-check")
    assert "already installed, nothing to do" in again.stdout
    assert os.readlink(stage.data / "current") == first

    with (stage.src / "doctor/__init__.py").open("a") as file:
        file.write("# changed\n")
    assert "is installed" in stage.run("--no-check").stdout
    second = os.readlink(stage.data / "current")
    assert second != first
    assert not Path(first).exists()

    gone = stage.run("--uninstall")
    assert gone.returncode == 0
    assert gone.stderr == ""
    assert stage.files() == before
    assert "nothing to remove" in stage.run("--uninstall").stdout


@pytest.mark.parametrize("code", ["0", "1", "2", "3"])
def test_exit_status_is_never_that_of_check(stage: Stage, code: str) -> None:
    done = stage.run(env={"STUB_CHECK": code})
    assert done.returncode == 0
    assert "Installed. `vllm-doctor check` says: " in done.stdout
    assert ("doctor itself failed" in done.stdout) == (code == "3")


def test_no_check(stage: Stage) -> None:
    assert "verdict" not in stage.run("--no-check").stdout


def test_the_checkout_stays_as_it_was(stage: Stage) -> None:
    before = sorted(stage.src.rglob("*"))
    assert stage.run().returncode == 0
    assert sorted(stage.src.rglob("*")) == before


def test_called_through_a_link_from_elsewhere_with_a_clean_copy(stage: Stage) -> None:
    (stage.root / "other").mkdir()
    (stage.root / "other/setup").symlink_to("../src/install.sh")
    (stage.src / "doctor/__pycache__").mkdir()
    done = subprocess.run(
        ["/bin/sh", "other/setup", "--no-check"],
        env=stage.environment(),
        cwd=stage.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    arguments = (stage.data / "current/bin/pip-arguments").read_text()
    assert str(stage.root / "tmp") in arguments, "the build takes a copy"


def test_failed_update_leaves_the_old_one_working(stage: Stage) -> None:
    assert stage.run("--no-check").returncode == 0
    in_use = os.readlink(stage.data / "current")
    (stage.src / "pyproject.toml").write_text((stage.src / "pyproject.toml").read_text() + "\n")
    one_line(stage.run(env={"STUB_PIP_SAYS": "ERROR: no"}))
    assert os.readlink(stage.data / "current") == in_use
    assert subprocess.run([stage.link, "--version"], env=stage.environment(), timeout=30).returncode == 0
    assert len(list((stage.data / "envs").iterdir())) == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_update(stage: Stage, number: signal.Signals, status: int, tmp_path: Path) -> None:
    """The old one stays in use; what a killed installer left is taken away by the next."""
    assert stage.run("--no-check").returncode == 0
    in_use = os.readlink(stage.data / "current")
    (stage.src / "doctor/__init__.py").write_text('__version__ = "9"\n')
    started = tmp_path / "pip-started"
    process = subprocess.Popen(
        ["/bin/sh", str(stage.src / "install.sh"), "--no-check"],
        env=stage.environment({"STUB_PIP_HANGS": str(started)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        deadline = time.monotonic() + 20
        while not started.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(timeout=10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)
    assert process.returncode == status
    assert os.readlink(stage.data / "current") == in_use
    assert stage.run("--no-check").returncode == 0
    left = list((stage.data / "envs").iterdir())
    assert [str(p) for p in left] == [os.readlink(stage.data / "current")]
    assert stage.run("--uninstall").stderr == ""
    assert not (stage.home / ".local").exists()


def test_broken_environment_is_made_again(stage: Stage) -> None:
    assert stage.run("--no-check").returncode == 0
    (stage.data / "current/bin/vllm-doctor").unlink()
    assert "is installed" in stage.run("--no-check").stdout
    assert stage.link.exists()


def test_one_installer_at_a_time(stage: Stage) -> None:
    flock = shutil.which("flock")
    if flock is None:
        pytest.skip("this machine has no flock")
    (stage.root / "tools/flock").symlink_to(flock)
    stage.data.mkdir(parents=True)
    holder = subprocess.Popen(
        [flock, str(stage.data), "-c", "echo held; exec sleep 30"], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert "another install.sh is at work" in one_line(stage.run())
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate()


# ------------------------------------------------------------------ other people's files


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_a_file_that_is_not_ours_is_refused(stage: Stage, kind: str) -> None:
    stage.link.parent.mkdir(parents=True)
    if kind == "file":
        stage.link.write_text("mine")
    else:
        stage.link.symlink_to("/bin/sh" if kind == "link" else "/nowhere")
    before = stage.files()
    assert "not ours" in one_line(stage.run())
    assert stage.files() == before
    elsewhere = stage.root / "elsewhere"
    assert stage.run("--no-check", "--bin-dir", str(elsewhere)).returncode == 0
    assert (elsewhere / "vllm-doctor").is_symlink()
    assert stage.run("--uninstall").returncode == 0
    assert stage.files() == before
    assert not elsewhere.exists()


def test_uninstall_leaves_what_is_not_ours_any_more(stage: Stage) -> None:
    (stage.home / ".local/bin").mkdir(parents=True)
    assert stage.run("--no-check").returncode == 0
    stage.link.unlink()
    stage.link.write_text("mine")
    (stage.data / "note.txt").write_text("mine")
    done = stage.run("--uninstall")
    assert done.returncode == 0
    assert str(stage.link) in done.stderr
    assert stage.files() == [
        "home/.local",
        "home/.local/bin",
        "home/.local/bin/vllm-doctor",
        "home/.local/share",
        "home/.local/share/vllm-env-doctor",
        "home/.local/share/vllm-env-doctor/note.txt",
    ]


def test_uninstall_keeps_and_names_what_the_doctor_recorded(stage: Stage) -> None:
    learned = stage.home / ".local/state/vllm-doctor"
    learned.mkdir(parents=True)
    assert stage.run("--no-check").returncode == 0
    assert f"kept: what vllm-doctor recorded for you in {learned}" in stage.run("--uninstall").stdout
    assert learned.is_dir()


def test_uninstall_follows_no_manifest_out_of_its_folder(stage: Stage) -> None:
    assert stage.run("--no-check").returncode == 0
    (stage.home / "precious").mkdir()
    (stage.home / "precious/file").write_text("mine")
    with (stage.data / "manifest").open("a") as manifest:
        manifest.write(f"env {stage.home}/precious\nlink {stage.home}/precious/file\ndir {stage.home}/precious\n")
    stage.run("--uninstall")
    assert (stage.home / "precious/file").read_text() == "mine"


def test_another_doctor_earlier_on_path(stage: Stage) -> None:
    stage.tool("vllm-doctor", "#!/bin/sh\n")
    done = stage.run("--no-check")
    assert f"another vllm-doctor comes first on PATH: {stage.root}/tools/vllm-doctor" in done.stderr
    ours_first = {"PATH": f"{stage.link.parent}:{stage.root}/tools"}
    assert "another" not in stage.run("--no-check", env=ours_first).stderr


# ------------------------------------------------------------------ PATH


@pytest.mark.parametrize(
    ("shell", "rc"),
    [("/bin/bash", ".bashrc"), ("/bin/zsh", ".zshrc"), ("", ".profile"), ("/usr/bin/fish", "fish")],
)
@pytest.mark.parametrize("content", [None, b"", b"alias a=b\n", b"alias a=b\nno end of line", b"\n\n"])
def test_start_file_is_given_back_byte_for_byte(stage: Stage, shell: str, rc: str, content: bytes | None) -> None:
    place = stage.home / (rc if rc != "fish" else ".config/fish/config.fish")
    if content is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(0o600)
    before = stage.files()
    env = {"SHELL": shell}
    assert stage.run("--no-check", env=env).returncode == 0
    assert (place.read_bytes() if place.exists() else None) == content, "untouched without --modify-path"
    for _ in range(2):
        assert stage.run("--no-check", "--modify-path", env=env).returncode == 0
    added = place.read_bytes().removeprefix(content or b"").splitlines()
    assert len([line for line in added if line]) == 1
    assert str(stage.link.parent).encode() in place.read_bytes()
    if content is not None:
        assert place.stat().st_mode & 0o777 == 0o600
    assert stage.run("--uninstall", env=env).stderr == ""
    assert stage.files() == before
    assert (place.read_bytes() if place.exists() else None) == content


def test_start_file_keeps_what_was_added_below(stage: Stage) -> None:
    place = stage.home / ".profile"
    place.write_bytes(b"first")
    stage.run("--no-check", "--modify-path")
    with place.open("ab") as file:
        file.write(b"last, open")
    stage.run("--uninstall")
    assert place.read_bytes() == b"first\nlast, open"


def test_the_added_line_works_for_an_odd_folder(stage: Stage) -> None:
    place = stage.root / 'it\'s a $(folder) \\ "x"'
    stage.run("--no-check", "--modify-path", "--bin-dir", str(place))
    done = subprocess.run(
        ["/bin/sh", "-c", '. "$HOME/.profile"; command -v vllm-doctor'],
        env=stage.environment(), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.stdout == f"{place}/vllm-doctor\n"


# ------------------------------------------------------------------ --test


def test_development_environment_and_the_status_of_pytest(stage: Stage) -> None:
    """--test makes .venv-dev once and hands its arguments to pytest."""
    stage.tool(
        "python3",
        (stage.root / "tools/python3")
        .read_text()
        .replace('        if [ "$2" = venv ]', '        if [ "$2" = pytest ]; then echo "pytest: $*"; exit 5; fi\n'
                 '        if [ "$2" = venv ]'),
    )  # fmt: skip
    done = stage.run("--test", "--", "-k", "a b", "tests/x")
    assert done.returncode == 5, done.stderr
    assert done.stdout.endswith("pytest: -m pytest -k a b tests/x\n")
    assert "-e .[dev]" in (stage.src / ".venv-dev/bin/pip-arguments").read_text()
    again = stage.run("--test")
    assert again.stdout == "pytest: -m pytest\n", "the second run makes nothing"
    assert stage.files() == [], "nothing in HOME"


# ------------------------------------------------------------------ for real


@pytest.mark.network
@pytest.mark.timeout(300)
def test_real_installation(bare: Stage) -> None:
    """Only a python3 on PATH, odd characters in every path, a registry: the real thing."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    probe = subprocess.run([base, "-c", "import ensurepip, venv"], capture_output=True, timeout=30)
    if probe.returncode != 0:
        pytest.skip(f"{base} has no venv module")
    odd = Stage(bare.root / "it's #1 %(x) [y] ö&!")
    odd.tool("python3", f'#!/bin/sh\nexec "{base}" "$@"\n')
    settings = ("PIP_", "UV_", "SSL_", "REQUESTS_", "HTTP", "NO_PROXY", "http", "https", "no_proxy")
    odd.env = {k: v for k, v in os.environ.items() if k.startswith(settings)}
    odd.env.setdefault("PIP_CACHE_DIR", str(Path("~/.cache/pip").expanduser()))
    done = odd.run(timeout=280)
    if "check the network" in done.stderr:
        pytest.skip(f"no package registry: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    assert "Installed. `vllm-doctor check` says: " in done.stdout
    version = subprocess.run([odd.link, "--version"], capture_output=True, text=True, timeout=30)
    assert version.stdout.startswith("vllm-doctor ")
    began = time.monotonic()
    assert "nothing to do" in odd.run("--no-check").stdout
    assert time.monotonic() - began < 5
    assert odd.run("--uninstall").stderr == ""
    assert not (odd.home / ".local").exists()
