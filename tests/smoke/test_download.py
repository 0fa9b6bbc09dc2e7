"""A model from a stub hub: asked first, resumed, checked, and laid out as the hub's own client does."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from doctor import catalogue
from doctor.host import LocalHost
from doctor.smoke import download, preflight
from doctor.smoke.download import DownloadError, fetch, obtain, plan, size_text
from doctor.smoke.model import inspect
from tests.smoke.conftest import make_model
from tests.smoke.test_command import ROOT, doctor

COMMIT = "938f8e3ef86c9d1e9bec3705e149694c172592f1"
NAME = "org/tiny"


def blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """What the stub has, what it was asked, and how it misbehaves."""

    files: dict[str, bytes]
    url: str = ""
    store: str = ""  # another origin, which large files are redirected to
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    cut_after: int = 0  # bytes of a large file after which each connection ends
    whole_only: bool = False  # ranges are ignored
    spoiled: bytes = b""  # sent instead of the large file's first bytes
    status: int = 0  # answer of everything
    slow: float = 0.0  # seconds between pieces

    def listing(self) -> dict[str, object]:
        rows: list[dict[str, object]] = []
        for name, data in self.files.items():
            row: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob(data)}
            if name.endswith((".safetensors", ".bin")):
                sha = hashlib.sha256(data).hexdigest()
                row["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
            rows.append(row)
        return {"id": NAME, "sha": COMMIT, "siblings": rows}


def _handler(hub: Hub, *, store: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            hub.asked.append((("store" if store else "") + self.path, dict(self.headers.items())))
            path = urlsplit(self.path).path  # a proxy is asked for the whole address
            if hub.status:
                self.send_error(hub.status)
            elif path in (f"/api/models/{NAME}/revision/main", f"/api/models/{NAME}/revision/{COMMIT}"):
                self.body(json.dumps(hub.listing()).encode())
            elif path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
                name = path.removeprefix(f"/{NAME}/resolve/{COMMIT}/")
                if name.endswith(".safetensors") and not store:
                    self.send_response(302)
                    self.send_header("Location", f"{hub.store}{path}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self.file(hub.files[name], large=store)
            else:
                self.send_error(404)

        def body(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def file(self, data: bytes, *, large: bool) -> None:
            begin = 0
            if "Range" in self.headers and not hub.whole_only:
                begin = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            data = (hub.spoiled + data[len(hub.spoiled) :])[begin:] if large else data[begin:]
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            data = data[: hub.cut_after] if large and hub.cut_after else data
            for at in range(0, len(data), 1 << 16):
                self.wfile.write(data[at : at + (1 << 16)])
                time.sleep(hub.slow)

    return Handler


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = make_model(tmp_path / "source")
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    files["model.safetensors"] += b"\0" * 300_000
    files["sub/notes.txt"] = b"text\n"
    files["pytorch_model.bin"] = b"the same weights again"
    stub = Hub(files)
    servers = []
    for store in (False, True):
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(stub, store=store))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    # another name of the same machine is another origin to a client
    stub.url, stub.store = (
        f"http://127.0.0.1:{servers[0].server_port}",
        f"http://localhost:{servers[1].server_port}",
    )
    yield stub
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def env(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(download, "WAIT_S", 0.01)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PATH": os.environ["PATH"]}


def silent(_: str) -> None:
    pass


def yes(_: str) -> bool:
    return True


def folder_of(env: dict[str, str]) -> Path:
    return Path(env["HF_HOME"]) / "hub" / "models--org--tiny"


def test_the_layout_is_the_hubs_own(hub: Hub, env: dict[str, str]) -> None:
    host = LocalHost(env=env)
    asked: list[str] = []
    said: list[str] = []

    def agree(text: str) -> bool:
        asked.append(text)
        return True

    assert obtain(NAME, host, agree, said.append, every_s=0.0) == ""
    assert len(asked) == 1
    assert f"org/tiny at {COMMIT[:12]}: 300 kB, from {hub.url} to {folder_of(env)}" in asked[0]
    assert "/s, 0 s left" in said[-1]
    found = inspect(host, NAME)
    assert (found.problem, found.has_mtp) == (None, True)
    snapshot = folder_of(env) / "snapshots" / COMMIT
    assert found.path == str(snapshot)
    assert (folder_of(env) / "refs" / "main").read_text() == COMMIT
    data = hub.files["model.safetensors"]
    link = os.readlink(snapshot / "model.safetensors")
    assert link == f"../../blobs/{hashlib.sha256(data).hexdigest()}"
    assert os.readlink(snapshot / "sub" / "notes.txt") == f"../../../blobs/{blob(b'text' + chr(10).encode())}"
    assert {str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if p.is_symlink()} == {
        n for n in hub.files if n != "pytorch_model.bin"
    }
    assert (snapshot / "model.safetensors").read_bytes() == data
    assert not list((folder_of(env) / "blobs").glob("*.incomplete"))
    # here now: the hub is not asked again, and not needed
    hub.asked.clear()
    assert obtain(NAME, LocalHost(env={**env, "HF_HUB_OFFLINE": "1"}), agree, silent) == ""
    assert (hub.asked, len(asked)) == ([], 1)


def test_the_hubs_own_client_finds_it(hub: Hub, env: dict[str, str]) -> None:
    hub_client = pytest.importorskip("huggingface_hub")
    fetch(plan(f"{NAME}@{COMMIT}", env), env, silent)
    cache = str(folder_of(env).parent)
    found = hub_client.snapshot_download(NAME, revision=COMMIT, cache_dir=cache, local_files_only=True)
    assert Path(found) == folder_of(env) / "snapshots" / COMMIT


def test_a_commit_needs_no_reference(hub: Hub, env: dict[str, str]) -> None:
    given = f"{NAME}@{COMMIT}"
    assert obtain(given, LocalHost(env=env), yes, silent) == ""
    assert inspect(LocalHost(env=env), given).problem is None
    assert not (folder_of(env) / "refs").exists()


def test_nothing_without_a_yes(hub: Hub, env: dict[str, str]) -> None:
    why = obtain(NAME, LocalHost(env=env), lambda _: False, silent)
    assert "not fetched: org/tiny at" in why
    assert "300 kB" in why
    assert not folder_of(env).exists()


def test_cut_connections_go_on_where_they_ended(hub: Hub, env: dict[str, str]) -> None:
    hub.cut_after = 70_000
    assert obtain(NAME, LocalHost(env=env), yes, silent) == ""
    ranges = [h.get("Range") for path, h in hub.asked if path.startswith("store")]
    assert ranges[0] is None
    assert ranges[1] == "bytes=70000-"
    assert len(ranges) == 5


def test_a_hub_that_ignores_ranges(hub: Hub, env: dict[str, str]) -> None:
    part = folder_of(env) / "blobs" / f"{hashlib.sha256(hub.files['model.safetensors']).hexdigest()}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(hub.files["model.safetensors"][:1000])
    hub.whole_only = True
    assert obtain(NAME, LocalHost(env=env), yes, silent) == ""
    stored = folder_of(env) / "snapshots" / COMMIT / "model.safetensors"
    assert stored.read_bytes() == hub.files["model.safetensors"]


def test_what_another_run_left_is_resumed_and_counted(hub: Hub, env: dict[str, str]) -> None:
    data = hub.files["model.safetensors"]
    part = folder_of(env) / "blobs" / f"{hashlib.sha256(data).hexdigest()}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(data[:200_000])
    wanted = plan(NAME, env)
    assert wanted.total - wanted.missing == 200_000
    assert "of 300 kB, the rest is there already" in wanted.text()
    said: list[str] = []
    fetch(wanted, env, said.append, 0.0)
    assert "model.safetensors: checking what is there" in said
    assert [h["Range"] for path, h in hub.asked if path.startswith("store")] == ["bytes=200000-"]


def test_a_spoiled_beginning_is_fetched_again(hub: Hub, env: dict[str, str]) -> None:
    data = hub.files["model.safetensors"]
    part = folder_of(env) / "blobs" / f"{hashlib.sha256(data).hexdigest()}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    assert obtain(NAME, LocalHost(env=env), yes, silent) == ""
    assert (folder_of(env) / "snapshots" / COMMIT / "model.safetensors").read_bytes() == data


def test_a_wrong_hash_is_not_kept(hub: Hub, env: dict[str, str]) -> None:
    hub.spoiled = b"not the weights"
    why = obtain(NAME, LocalHost(env=env), yes, silent)
    assert "model.safetensors came with another hash" in why
    assert inspect(LocalHost(env=env), NAME).problem is not None
    blobs = {p.name for p in (folder_of(env) / "blobs").iterdir()}
    assert hashlib.sha256(hub.files["model.safetensors"]).hexdigest() not in blobs
    assert not [n for n in blobs if n.endswith(".incomplete")]


def test_a_connection_that_brings_nothing_is_given_up(hub: Hub, env: dict[str, str]) -> None:
    wanted = plan(NAME, env)
    hub.status = 503
    with pytest.raises(
        DownloadError, match=r"stopped at 0 bytes of .* \(the hub answered 503\); what is there is"
    ):
        fetch(wanted, env, silent)


@pytest.mark.parametrize(
    ("status", "text"),
    [(401, "set HF_TOKEN"), (403, "accept its licence"), (404, "does not exist there"), (503, "answered 503")],
)
def test_what_the_hub_answers(hub: Hub, env: dict[str, str], status: int, text: str) -> None:
    hub.status = status
    assert text in obtain(NAME, LocalHost(env=env), yes, silent)


def test_a_token_goes_to_the_hub_and_not_further(hub: Hub, env: dict[str, str]) -> None:
    env["HF_TOKEN"] = "hf_secret"
    assert obtain(NAME, LocalHost(env=env), yes, silent) == ""
    sent = {path.startswith("store"): headers.get("Authorization") for path, headers in hub.asked}
    assert sent == {False: "Bearer hf_secret", True: None}


def test_offline_and_unreachable_are_one_line(env: dict[str, str]) -> None:
    offline = obtain(NAME, LocalHost(env={**env, "HF_HUB_OFFLINE": "1"}), yes, silent)
    assert "HF_HUB_OFFLINE forbids" in offline
    no_name = obtain(NAME, LocalHost(env={**env, "HF_ENDPOINT": "http://hub.invalid"}), yes, silent)
    assert no_name.startswith(f"{NAME} is not in {env['HF_HOME']}/hub, and http://hub.invalid cannot be asked: ")
    assert "\n" not in no_name
    assert "not an http address" in obtain(NAME, LocalHost(env={**env, "HF_ENDPOINT": "ftp://x"}), yes, silent)


@pytest.mark.parametrize(
    ("setting", "cause"),
    [
        ({"HF_ENDPOINT": "http://hub.invalid"}, "hub-name-resolution-failed"),
        ({"HF_ENDPOINT": "http://127.0.0.1:1"}, "hub-name-resolution-failed"),
        ({"HF_HUB_OFFLINE": "1"}, "hub-model-not-cached-offline"),
    ],
)
def test_a_hub_out_of_reach_is_not_taken_for_a_missing_folder(
    env: dict[str, str], setting: dict[str, str], cause: str
) -> None:
    host = LocalHost(env={**env, **setting})
    finding = preflight.model_invalid(inspect(host, NAME, obtain(NAME, host, yes, silent)))
    assert finding is not None
    assert (finding.id, finding.fixes) == (cause, catalogue.cause(cause).remedies)
    assert finding.blocks
    assert "is not in" in finding.summary


def test_the_command_passes_the_cause_on(env: dict[str, str]) -> None:
    argv = [sys.executable, "-m", "doctor", "smoke", "--model", NAME, "--json"]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, **env, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "hub-model-not-cached-offline" in [f["id"] for f in json.loads(done.stdout)["findings"]]


@pytest.mark.parametrize(("status", "cause"), [(401, "hub-access-denied"), (403, "hub-access-denied"),
                                           (404, "model-path-invalid")])  # fmt: skip
def test_the_cause_of_a_refusal(hub: Hub, env: dict[str, str], status: int, cause: str) -> None:
    hub.status = status
    assert obtain(NAME, LocalHost(env=env), yes, silent).cause == cause


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a//b", ""])
def test_names_that_would_leave_the_folder(hub: Hub, env: dict[str, str], name: str) -> None:
    hub.files[name] = b"evil"
    assert "does not answer as a hub does" in obtain(NAME, LocalHost(env=env), yes, silent)


def test_through_a_proxy(hub: Hub, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", hub.url)
    monkeypatch.setenv("no_proxy", "localhost")
    assert obtain(NAME, LocalHost(env={**env, "HF_ENDPOINT": "http://hub.invalid"}), yes, silent) == ""
    assert hub.asked[0][0].startswith("http://hub.invalid/api/models/org/tiny/revision/main")


def test_no_room(hub: Hub, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "no room for org/tiny" in obtain(NAME, LocalHost(env=env), yes, silent)


def test_folders_and_other_names_are_not_the_hubs_business(tmp_path: Path, env: dict[str, str]) -> None:
    for given in (str(tmp_path), "/nowhere/at/all", "no slash"):
        assert obtain(given, LocalHost(env=env), yes, silent) == ""


def test_sizes() -> None:
    assert [size_text(n) for n in (12, 4_321, 2_500_000, 9_310_000_000)] == [
        "12 bytes",
        "4.32 kB",
        "2.5 MB",
        "9.31 GB",
    ]


def test_the_command_never_fetches_unasked(hub: Hub, env: dict[str, str], environment: Path) -> None:
    arguments = ["--model", NAME, "--python", str(environment), "--json"]
    piped = doctor(*arguments, **env)
    assert piped.returncode == 2
    assert "Not fetched: org/tiny at" in json.loads(piped.stdout)["findings"][0]["summary"]
    assert not folder_of(env).exists()
    done = doctor(*arguments, "--download", **env)
    assert json.loads(done.stdout)["smoke"]["server"]["model"].endswith(COMMIT)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_stopped_and_resumed(hub: Hub, env: dict[str, str], environment: Path, number: int, code: int) -> None:
    hub.files["model.safetensors"] += os.urandom(4 << 20)
    hub.slow = 0.05
    argv = [
        sys.executable,
        "-m",
        "doctor",
        "smoke",
        "--model",
        NAME,
        "--python",
        str(environment),
        "--yes",
        "--json",
    ]
    process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.DEVNULL)
    part = folder_of(env) / "blobs" / f"{hashlib.sha256(hub.files['model.safetensors']).hexdigest()}.incomplete"
    deadline = time.monotonic() + 30
    while not part.exists() or part.stat().st_size < 1 << 20:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(20) == code
    had = part.stat().st_size
    assert inspect(LocalHost(env=env), NAME).problem is not None
    hub.asked.clear()
    hub.slow = 0.0
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["smoke"]["server"]["state"] == "healthy"
    ranges = [h.get("Range") for path, h in hub.asked if path.startswith("store")]
    assert ranges == [f"bytes={had}-"]


def test_a_terminal_is_asked(
    hub: Hub, env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from doctor.commands.smoke import _obtain

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for answer, fetched in (("\n", False), ("n\n", False), ("y\n", True)):
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", terminal)
        assert (_obtain(NAME, LocalHost(env=env), False) == "") is fetched
        assert "Fetch it? [y/N]" in capsys.readouterr().err
