"""--verify-pins against a real HTTP server that plays a registry and a hub."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from doctor.image import pins, registry_client, verify
from tests.image.registry import FakeRegistry, digest, index, manifest, reply, running, trickle
from tests.image.test_pins import context

PINNED = index("sha256:" + "1" * 64, "sha256:" + "2" * 64)
OTHER = index("sha256:" + "3" * 64)
REVISION = "938f8e3ef86c9d1e9bec3705e149694c172592f1"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with running() as fake:
        yield fake


def pin(fake: FakeRegistry, expected: str = digest(PINNED), verified: str | None = None) -> pins.Pins:
    image = pins.Image("cuda", f"{fake.host}/nvidia/cuda:13.0", expected, verified)
    return pins.Pins(Path(), "a test", "0.26.0", (image,), (), None)


def ask(given: pins.Pins, **env: str) -> verify.PinResult:
    (result,) = verify.verify(given, env, lambda _: None)
    return result


def test_tag_that_names_the_pin_is_equal_and_its_platforms_are_listed(registry: FakeRegistry) -> None:
    registry.serve(PINNED, "13.0")
    result = ask(pin(registry))
    assert (result.status, result.found) == ("equal", digest(PINNED))
    assert result.platforms == ("linux/amd64", "linux/arm64/v8")


def test_token_is_asked_for_as_the_registry_says_and_used_for_the_registry_alone(registry: FakeRegistry) -> None:
    registry.serve(OTHER, "13.0")
    registry.serve(PINNED)
    ask(pin(registry))
    paths = [path for path, _ in registry.asked]
    assert paths == [
        "/v2/nvidia/cuda/manifests/13.0",
        "/token?a=b&scope=repository%3Anvidia%2Fcuda%3Apull&service=registry.test",
        "/v2/nvidia/cuda/manifests/13.0",
        f"/v2/nvidia/cuda/manifests/{digest(PINNED)}",
    ]
    assert "authorization" not in registry.asked[1][1]
    assert "application/vnd.oci.image.index.v1+json" in registry.asked[0][1]["accept"]


def test_registry_without_tokens_is_asked_once(registry: FakeRegistry) -> None:
    registry.token = None
    registry.serve(PINNED, "13.0")
    assert ask(pin(registry)).status == "equal"
    assert len(registry.asked) == 1


def test_moved_tag_shows_both_digests_and_that_the_old_one_is_still_served(registry: FakeRegistry) -> None:
    registry.serve(PINNED)
    registry.serve(OTHER, "13.0")
    result = ask(pin(registry))
    assert (result.status, result.pinned, result.found) == ("moved", digest(PINNED), digest(OTHER))
    assert "still served" in result.reason
    text = "\n".join(verify.lines([result]))
    assert digest(PINNED) in text
    assert f"now      {digest(OTHER)}" in text
    assert verify.exit_code([result]) == 1


def test_header_that_claims_the_pinned_digest_is_not_believed(registry: FakeRegistry) -> None:
    registry.token = None
    registry.answer = lambda r: reply(r, 200, OTHER, {"Docker-Content-Digest": digest(PINNED)})
    result = ask(pin(registry))
    assert (result.status, result.found) == ("moved", digest(OTHER))
    assert "sent other bytes than the digest asked for" in result.reason


def test_pin_that_is_not_served_any_more_is_gone(registry: FakeRegistry) -> None:
    registry.serve(OTHER, "13.0")
    result = ask(pin(registry))
    assert result.status == "gone"
    assert verify.exit_code([result]) == 2


def test_tag_that_is_not_served_any_more(registry: FakeRegistry) -> None:
    registry.serve(PINNED)
    result = ask(pin(registry))
    assert (result.status, result.found) == ("moved", None)
    assert result.reason == "the tag does not exist any more; the pinned digest is still served"
    registry.manifests.clear()
    assert ask(pin(registry)).status == "gone"


def test_pin_of_one_platform_of_the_index_is_told_apart(registry: FakeRegistry) -> None:
    registry.serve(PINNED, "13.0")
    result = ask(pin(registry, "sha256:" + "2" * 64))
    assert (result.status, verify.exit_code([result])) == ("platform", 0)
    assert "the manifest for linux/arm64/v8" in result.reason


def test_single_manifest_has_no_platforms(registry: FakeRegistry) -> None:
    one = manifest("amd64 alone")
    registry.serve(one, "13.0")
    result = ask(pin(registry, digest(one)))
    assert (result.status, result.platforms) == ("equal", ())


def _page(request: BaseHTTPRequestHandler) -> bool:
    return reply(request, 200, b"<html>please log in to the network</html>", {"Content-Type": "text/html"})


def _old(request: BaseHTTPRequestHandler) -> bool:
    return reply(request, 200, b'{"schemaVersion": 1, "name": "nvidia/cuda"}')


def _cut(request: BaseHTTPRequestHandler) -> bool:
    return reply(request, 200, PINNED[:50], {"Content-Length": str(len(PINNED))})


def _no_http(request: BaseHTTPRequestHandler) -> bool:
    request.wfile.write(b"SSH-2.0-OpenSSH_9.2p1\r\n")
    return True


def _odd_kind(request: BaseHTTPRequestHandler) -> bool:
    return reply(request, 200, b'{"schemaVersion": 2}', {"Content-Type": "application/octet-stream"})


def _status(code: int) -> object:
    return lambda request: reply(request, code, b"no")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_page, "is not a manifest (text/html)"),
        (_old, "is not a manifest"),
        (_odd_kind, "a manifest of an unknown kind (application/octet-stream)"),
        (_cut, "the connection closed before the end"),
        (_no_http, "does not speak HTTP as expected (BadStatusLine)"),
        (_status(403), "denies access (403)"),
        (_status(429), "allows no more requests from this address for now (429)"),
        (_status(503), "answered 503"),
    ],
)
def test_other_answers_are_not_reachable_with_the_reason(
    registry: FakeRegistry, answer: object, said: str
) -> None:
    registry.answer = answer  # type: ignore[assignment]
    result = ask(pin(registry))
    assert (result.status, result.found) == ("not reachable", None)
    assert said in result.reason
    assert registry.host in result.reason
    assert verify.exit_code([result]) == 1


@pytest.mark.parametrize(
    ("challenge", "token", "said"),
    [
        ('Basic realm="registry"', "x", "wants a login that this does not know"),
        ("", "x", "wants a login that this does not know"),
        ('Bearer realm="file:///etc/passwd"', "x", "wants a login that this does not know"),
        (None, "a b\r\nX-Evil: 1", "does not answer as a token service does"),
        (None, "", "does not answer as a token service does"),
    ],
)
def test_login_that_cannot_be_made(registry: FakeRegistry, challenge: str | None, token: str, said: str) -> None:
    registry.challenge = registry.challenge if challenge is None else challenge
    registry.token = token
    result = ask(pin(registry))
    assert (result.status, said in result.reason) == ("not reachable", True), result.reason


def test_private_repository_wants_a_login_even_with_a_token(registry: FakeRegistry) -> None:
    registry.answer = lambda r: (
        not r.path.startswith("/token") and reply(r, 401, b"", {"WWW-Authenticate": registry.challenge})
    )
    assert "wants a login for it; none is used here" in ask(pin(registry)).reason
    registry.answer = lambda r: reply(r, 401, b"", {"WWW-Authenticate": registry.challenge})
    assert "gives out no token without a login" in ask(pin(registry)).reason


def test_redirect_to_another_host_does_not_take_the_token_along(registry: FakeRegistry) -> None:
    with running() as elsewhere:
        elsewhere.token = None
        elsewhere.serve(PINNED, "13.0")
        registry.answer = lambda r: (
            r.headers.get("Authorization") is not None
            and reply(r, 307, b"", {"Location": f"http://{elsewhere.host}{r.path}"})
        )
        assert ask(pin(registry)).status == "equal"
        assert [headers.get("authorization") for _, headers in elsewhere.asked] == [None]


def test_registry_that_does_not_answer_costs_the_deadline(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "DEADLINE_S", 0.3)
    for answer in (lambda r: trickle(r, 5.0), lambda r: time.sleep(2.0) or True):
        registry.answer = answer  # type: ignore[assignment]
        began = time.monotonic()
        result = ask(pin(registry))
        assert time.monotonic() - began < 1.8
        assert result.reason == f"no answer from {registry.host} within 0.3 s"


def test_all_pins_together_have_a_deadline(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "DEADLINE_S", 0.2)
    registry.answer = lambda r: time.sleep(1.0) or True  # type: ignore[func-returns-value]
    assert ask(pin(registry)).reason == "no answer within 0.2 s"


def test_answer_without_end_is_given_up(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "LARGEST_MANIFEST_BYTES", 100)
    registry.serve(PINNED, "13.0")
    assert "sent more than 100 bytes" in ask(pin(registry)).reason


def test_nobody_listens_and_name_that_does_not_exist(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as closed:
        gone = closed.host
    given = pin(registry)
    given = pins.Pins(
        given.root, given.source, given.vllm,
        (pins.Image("a", f"{gone}/x:1", digest(PINNED), None),
         pins.Image("b", "registry.invalid/x:1", digest(PINNED), None),
         pins.Image("c", "Not A Reference", digest(PINNED), None)), (), None,
    )  # fmt: skip
    refused, unknown, malformed = verify.verify(given, {}, lambda _: None)
    assert refused.reason == f"{gone} cannot be reached (Connection refused)"
    assert unknown.reason.startswith("the name registry.invalid does not resolve (")
    assert malformed.reason == "'Not A Reference' is not an image reference with a tag"


def test_proxy_of_the_environment_is_used_and_its_password_is_not_shown(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", f"http://user:hunter2@{registry.host}")
    registry.answer = lambda r: reply(r, 407, b"")
    given = pins.Pins(Path(), "", "0", (pins.Image("a", "registry.test/x:1", digest(PINNED), None),), (), None)
    result = ask(given)
    assert registry.asked[0][0] == "registry.test:443"
    assert "407" in result.reason
    assert "hunter2" not in result.reason


@pytest.mark.parametrize(
    ("reference", "base"),
    [
        ("docker.io/nvidia/cuda:13.0", "https://registry-1.docker.io/v2/nvidia/cuda"),
        ("ubuntu:24.04", "https://registry-1.docker.io/v2/library/ubuntu"),
        ("nvidia/cuda:13.0", "https://registry-1.docker.io/v2/nvidia/cuda"),
        ("ghcr.io/a/b/c:1", "https://ghcr.io/v2/a/b/c"),
        ("localhost:5000/a:1", "http://localhost:5000/v2/a"),
        ("host.test:5000/a:1", "https://host.test:5000/v2/a"),
    ],
)
def test_where_a_reference_is_asked_for(reference: str, base: str) -> None:
    assert registry_client.parse(reference).base == base


@pytest.mark.parametrize("reference", ["nvidia/cuda", "a/../b:1", "nvidia/cuda:1?x", "UPPER/case:1", "a:b:c"])
def test_what_is_no_reference_with_a_tag(reference: str) -> None:
    with pytest.raises(ValueError, match="is not an image reference with a tag"):
        registry_client.parse(reference)


# ------------------------------------------------------------------ the model


def model(fake: FakeRegistry, **env: str) -> verify.PinResult:
    given = pins.Pins(Path(), "", "0", (), (), pins.Model("Quant/Qwen", REVISION, None))
    return ask(given, **{"HF_ENDPOINT": f"http://{fake.host}/", **env})


def test_model_revision_is_asked_of_the_hub(registry: FakeRegistry) -> None:
    registry.models = {"Quant/Qwen": {"sha": REVISION}}
    assert model(registry).status == "equal"
    newer = "b" * 40
    registry.models = {"Quant/Qwen": {"sha": newer}, f"Quant/Qwen/revision/{REVISION}": {"sha": REVISION}}
    moved = model(registry)
    assert (moved.status, moved.found) == ("moved", newer)
    registry.models = {"Quant/Qwen": {"sha": newer}}
    assert model(registry).status == "gone"


def test_hub_that_cannot_be_asked(registry: FakeRegistry) -> None:
    assert "does not have it (404)" in model(registry).reason
    registry.models = {"Quant/Qwen": ["no object"]}
    assert "does not answer as a hub does" in model(registry).reason
    before = len(registry.asked)
    assert "HF_HUB_OFFLINE forbids" in model(registry, HF_HUB_OFFLINE="1").reason
    assert "not an http address" in model(registry, HF_ENDPOINT="ftp://hub").reason
    assert len(registry.asked) == before


# ------------------------------------------------------------------ what is said


def test_pins_that_were_never_verified_are_named(registry: FakeRegistry) -> None:
    registry.serve(PINNED, "13.0")
    never = "\n".join(verify.lines([ask(pin(registry))]))
    assert "no verification on record: cuda" in never
    assert "no verification on record" not in "\n".join(verify.lines([ask(pin(registry, verified="2026-11-30"))]))


def test_asking_changes_no_file(registry: FakeRegistry, tmp_path: Path) -> None:
    def here(data: dict[str, dict[str, dict[str, str]]]) -> None:
        for name, image in data["images"].items():
            image["reference"] = f"{registry.host}/{name}:1"

    root = context(tmp_path, here)
    before = (root / "docker/pins.json").read_bytes()
    said: list[str] = []
    results = verify.verify(pins.load(root), {"HF_ENDPOINT": f"http://{registry.host}"}, said.append)
    assert [r.status for r in results] == ["gone", "gone", "not reachable"]
    assert len(said) == 3
    assert (root / "docker/pins.json").read_bytes() == before
