"""Proxies, the hub's name and the serving port. No test asks a name server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from doctor.facts import NetworkFacts
from doctor.host import listeners, network
from doctor.host.examine import Options
from tests.fakes import FakeHost
from tests.host import linux_hosts


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def resolve(name: str) -> str:
        names.append(name)
        return ""

    monkeypatch.setattr(network, "resolve", resolve)
    return names


def facts(host: FakeHost, options: Options | None = None) -> NetworkFacts:
    found = network.probe(host, options or Options())["network"]
    assert isinstance(found, NetworkFacts)
    assert not [name for name in found.sources if name.startswith("!")]
    return found


def test_all_well(tmp_path: Path, asked: list[str]) -> None:
    seen = facts(linux_hosts.native(tmp_path))
    assert (seen.hub_resolves, seen.hub_error, seen.hub_endpoint) == (True, None, "https://huggingface.co")
    assert asked == ["huggingface.co"]
    assert (seen.port, seen.port_given, seen.port_taken) == (8000, False, False)
    assert seen.proxies == {}


def test_credentials_of_proxies_and_endpoints_are_removed(tmp_path: Path, asked: list[str]) -> None:
    env = {
        "https_proxy": "http://ana:s3cret@proxy.example:3128/",
        "HTTP_PROXY": "proxy.example:3128",
        "ALL_PROXY": "socks5h://ana:p%40ss@10.0.0.1:1080",
        "NO_PROXY": "localhost,127.0.0.1",
        "HF_ENDPOINT": "https://ana:s3cret@hf-mirror.example",
    }
    seen = facts(linux_hosts.native(tmp_path, env))
    assert seen.proxies == {"https": "proxy.example:3128", "http": "proxy.example:3128", "all": "10.0.0.1:1080"}
    assert seen.hub_endpoint == "https://hf-mirror.example"
    assert asked == ["hf-mirror.example"]
    assert "s3cret" not in repr(seen)
    assert "p%40ss" not in repr(seen)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_mode_asks_nobody(tmp_path: Path, asked: list[str], name: str) -> None:
    seen = facts(linux_hosts.native(tmp_path, {name: "1"}))
    assert (seen.hub_resolves, asked) == (None, [])


def test_an_image_build_asks_nobody(tmp_path: Path, asked: list[str]) -> None:
    facts(linux_hosts.native(tmp_path), Options(inside_image=True))
    assert asked == []


def test_a_name_that_does_not_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: "Temporary failure in name resolution")
    seen = facts(linux_hosts.native(tmp_path))
    assert (seen.hub_resolves, seen.hub_error) == (False, "Temporary failure in name resolution")


def test_name_servers_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: time.sleep(30) or "")
    monkeypatch.setattr(network, "RESOLVE_DEADLINE_S", 0.2)
    began = time.monotonic()
    seen = facts(linux_hosts.native(tmp_path))
    assert time.monotonic() - began < 2
    assert (seen.hub_resolves, seen.hub_error) == (None, "the name servers do not answer")
    assert seen.port_taken is False


def busy(root: Path, *words: str, comm: str = "python3") -> FakeHost:
    host = linux_hosts.native(root)
    host.write("/proc/net/tcp", linux_hosts.TCP)
    host.write("/proc/4711/cmdline", "\0".join(words) + "\0")
    host.write("/proc/4711/comm", comm + "\n")
    # started 6,400,000 ticks after boot, the host runs for 86,400 s
    host.write("/proc/4711/stat", f"4711 ({comm} (x) y) S 1 " + " ".join(["0"] * 17) + " 6400000 0 0\n")
    host.link("/proc/4711/fd/7", "socket:[77123]")
    host.link("/proc/4711/fd/8", "socket:[1]")
    host.link("/proc/4700/fd/7", "/dev/null")
    return host


def test_who_listens(tmp_path: Path) -> None:
    words = ("/srv/venv/bin/python3", "/srv/venv/bin/vllm", "serve", "/models/q", "--api-key", "s3cret")
    seen = facts(busy(tmp_path, *words))
    assert (seen.port_taken, seen.port_address) == (True, "127.0.0.1:8000")
    assert (seen.port_listener, seen.port_listener_pid, seen.port_listener_is_vllm) == ("vllm", 4711, True)
    assert seen.port_listener_age_s == 22_400.0
    assert "s3cret" not in repr(seen)


def test_another_port_is_free(tmp_path: Path) -> None:
    seen = facts(busy(tmp_path, "x"), Options(port=8001))
    assert (seen.port, seen.port_given, seen.port_taken) == (8001, True, False)


def test_a_connection_is_not_a_listener(tmp_path: Path) -> None:
    assert facts(busy(tmp_path, "x"), Options(port=0xB2C6)).port_taken is False


def test_another_users_process_stays_unnamed(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/proc/net/tcp", linux_hosts.TCP)
    seen = facts(host)
    assert (seen.port_taken, seen.port_listener, seen.port_listener_pid) == (True, None, None)


def test_ipv6(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    row = "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9 1"  # noqa: E501
    host.write("/proc/net/tcp6", linux_hosts.TCP.splitlines()[0] + "\n" + row + "\n")
    seen = facts(host, Options(port=8080))
    assert (seen.port_taken, seen.port_address) == (True, "[::]:8080")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["/usr/bin/python3", "-m", "http.server", "8000"], "python3 -m http.server"),
        (["python3.11", "-u", "/srv/app/serve.py", "--key=x"], "serve.py"),
        (["/usr/bin/docker-proxy", "-proto", "tcp"], "docker-proxy"),
        (["VLLM::APIServer"], "VLLM::APIServer"),
        (["nginx: master process /usr/sbin/nginx"], "nginx"),
        (["python3", "-c", "token='s3cret'"], "python3"),
        ([], "kworker"),
    ],
)
def test_programs_are_named_without_their_arguments(words: list[str], name: str) -> None:
    assert listeners.program("kworker", words) == name
