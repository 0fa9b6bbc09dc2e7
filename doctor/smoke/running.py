"""A server that somebody else started: which model it serves and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.checks.registry import found
from doctor.facts import ServingFacts
from doctor.finding import Confidence, Evidence, Finding
from doctor.serve import metrics as names
from doctor.serve.client import Client, NoServerError, ServerError
from doctor.serve.metrics import Metrics
from doctor.smoke.options import CPU_MAX_MODEL_LEN
from doctor.smoke.probes import Session


@dataclass(frozen=True)
class Attached:
    """``problem`` when it cannot be asked; else ``session``. ``model`` is the name it serves under."""

    url: str
    model: str = ""
    root: str = ""  # where the server says the model lies
    version: str = ""
    session: Session | None = None
    problem: Finding | None = None


def attach(client: Client, model: str | None = None) -> Attached:
    """Asks the server what it serves. ``model`` picks one of several by name."""
    try:
        rows = client.models()
    except NoServerError as error:
        return Attached(client.url, problem=_problem("server-not-reachable", client.url, str(error)))
    except ServerError as error:
        return Attached(client.url, problem=_problem("server-gives-no-answer", client.url, str(error)))
    chosen = next((r for r in rows if r["id"] == model), None) if model else (rows[0] if rows else None)
    if chosen is None:
        served = ", ".join(str(r["id"]) for r in rows) or "none"
        why = f"it serves {served}, not {model or 'a model'}"
        return Attached(client.url, problem=_problem("server-gives-no-answer", client.url, why))
    client.model = str(chosen["id"])
    length = chosen.get("max_model_len")
    try:
        told = client.get("/version")
        version = str(told.get("version") or "") if isinstance(told, dict) else ""
    except ServerError:
        version = ""
    try:
        counters = client.metrics()
    except ServerError:
        counters = Metrics()
    session = _session(client, counters, length if isinstance(length, int) else None, version)
    return Attached(client.url, client.model, str(chosen.get("root") or ""), version, session)


def _session(client: Client, counters: Metrics, length: int | None, version: str) -> Session:
    cache = counters.info(names.CACHE_CONFIG)
    caching = cache.get("enable_prefix_caching")
    # one counter a draft position, there from the start; no such counter means no speculative decoding
    positions = counters.by(names.ACCEPTED_PER_POSITION, "position")
    unknown = {
        *(() if caching in ("True", "False") else ("prefix_caching",)),
        *(() if cache or positions else ("draft_tokens",)),
    }
    facts = ServingFacts(
        vllm=version or None,
        max_model_len=length,
        block_size=_whole(cache.get("block_size")),
        kv_tokens=_whole(cache.get("kv_cache_size_tokens")),
        concurrency=_number(cache.get("kv_cache_max_concurrency")),
        mamba_cache_mode=cache.get("mamba_cache_mode"),
        sources={"block_size": f"{client.url}/metrics"},
    )
    return Session(
        client=client,
        server=facts,
        cpu=True,  # what it runs on is not known: never judged by speed
        draft_tokens=len(positions),
        prefix_caching=caching == "True",
        max_model_len=length or CPU_MAX_MODEL_LEN,
        shared=True,
        unknown=frozenset(unknown),
    )


def _problem(cause: str, url: str, why: str) -> Finding:
    return found(
        cause,
        Confidence.PROVEN,
        f"{url}: {why}.",
        [Evidence("request.error", why, f"{url}/v1/models")],
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) > 0 else None


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
