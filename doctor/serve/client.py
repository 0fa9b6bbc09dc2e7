"""Asks a vLLM server over HTTP: standard library only, a deadline on every call, times taken while streaming."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor.errors import DoctorError
from doctor.serve.metrics import Metrics, parse

#: Largest body that is read in one piece (the metrics of a busy server are below 1 MB).
_BODY_LIMIT = 16 << 20


#: vLLM lets no log-probability be less than -9999; one that is not a number (broken logits) becomes null.
NOT_A_NUMBER = -99999.0


class ServerError(Exception):
    """The server could not be asked, or answered something unusable; one line."""


class NoServerError(ServerError):
    """Not one byte came: the name does not resolve, the connection is refused, cut or without an answer."""


@dataclass(frozen=True)
class Answer:
    """One streamed completion. Times in seconds since the request was sent; None = did not happen.

    ``error`` says why the answer is not whole: an HTTP error, an error object in the stream, a stream
    that ended early, a deadline. ``top_logprobs`` are per token, NOT_A_NUMBER where the API has null.
    """

    status: int | None = None
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # None: the server gives no details
    ttft_s: float | None = None
    total_s: float = 0.0
    tokens: tuple[str, ...] = ()
    top_logprobs: tuple[Mapping[str, float], ...] = ()
    arrivals_s: tuple[float, ...] = ()  # when each message with tokens came
    usage_last: bool = False  # usage came with a message after the last token
    error: str | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """True for a whole answer."""
        return self.error is None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first, by the time after the first."""
        if self.ttft_s is None or not self.completion_tokens or self.completion_tokens < 2:
            return None
        seconds = self.total_s - self.ttft_s
        return (self.completion_tokens - 1) / seconds if seconds > 0 else None


@dataclass(frozen=True)
class Reply:
    """One JSON answer in one piece. ``error`` is the server's own message when it refused or did not answer."""

    status: int | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def choice(self) -> Mapping[str, Any]:
        """The first choice, {} when there is none."""
        choices = self.body.get("choices")
        return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


class Client:
    """Talks to one server. ``deadline_s`` bounds each request as a whole."""

    def __init__(
        self,
        port: int,
        model: str,
        *,
        host: str = "127.0.0.1",
        deadline_s: float = 120.0,
        tls: bool = False,
        root: str = "",
        key: str = "",
    ) -> None:
        self.host = host
        self.port = port
        self.model = model
        self.deadline_s = deadline_s
        self._tls = tls
        self._root = root
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    @classmethod
    def of_url(cls, url: str, *, deadline_s: float = 120.0, key: str = "") -> Client:
        """A client of a running server; which model it serves is to be asked. Raises DoctorError."""
        try:
            parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise DoctorError(f"--url {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DoctorError(f"--url {url}: give it as http://HOST:PORT")
        if parts.username or parts.query or parts.fragment:
            raise DoctorError("--url takes no user, query or fragment; a key goes into VLLM_API_KEY")
        root = parts.path.rstrip("/").removesuffix("/v1")
        tls = parts.scheme == "https"
        port = port or (443 if tls else 80)
        return cls(port, "", host=parts.hostname, deadline_s=deadline_s, tls=tls, root=root, key=key)

    @property
    def url(self) -> str:
        """Where it asks."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self._tls else ''}://{host}:{self.port}{self._root}"

    def models(self, timeout_s: float = 10.0) -> list[Mapping[str, Any]]:
        """The models that are served, first the base model. Raises ServerError."""
        answer = self.get("/v1/models", timeout_s)
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(
            isinstance(r, dict) and isinstance(r.get("id"), str) for r in rows
        ):
            raise ServerError("/v1/models lists no models")
        return rows

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """True when /health answers 200. It proves only that the HTTP server runs: ask the model too."""
        try:
            status, _ = self._call("GET", "/health", None, timeout_s)
        except ServerError:
            return False
        return status == 200

    def get(self, path: str, timeout_s: float = 10.0) -> Any:
        """A JSON document. Raises ServerError."""
        return self._json(*self._call("GET", path, None, timeout_s))

    def metrics(self, timeout_s: float = 10.0) -> Metrics:
        """The server's counters. Raises ServerError."""
        status, body = self._call("GET", "/metrics", None, timeout_s)
        if status != 200:
            raise ServerError(f"/metrics answered HTTP {status}")
        return parse(body.decode("utf-8", "replace"))

    def tokenize(self, text: str, timeout_s: float = 30.0) -> list[int]:
        """The token ids of a text. Raises ServerError."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        tokens = self._json(*self._call("POST", "/tokenize", body, timeout_s)).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise ServerError("/tokenize gave no list of token ids")
        return tokens

    def detokenize(self, tokens: Sequence[int], timeout_s: float = 30.0) -> str:
        """The text of token ids. Raises ServerError."""
        body = {"model": self.model, "tokens": list(tokens)}
        text = self._json(*self._call("POST", "/detokenize", body, timeout_s)).get("prompt")
        if not isinstance(text, str):
            raise ServerError("/detokenize gave no text")
        return text

    def tokenize_chat(self, text: str, timeout_s: float = 30.0) -> list[int]:
        """The token ids that the chat template makes of one user message. Raises ServerError."""
        body = {"model": self.model, "messages": [{"role": "user", "content": text}]}
        tokens = self._json(*self._call("POST", "/tokenize", body, timeout_s)).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise ServerError("/tokenize gave no list of token ids for a chat")
        return tokens

    def reply(self, path: str, body: Mapping[str, Any]) -> Reply:
        """A request whose answer comes in one piece, at temperature 0 unless it says otherwise. Never raises."""
        try:
            status, data = self._call(
                "POST", path, {"model": self.model, "temperature": 0, **body}, self.deadline_s
            )
        except ServerError as error:
            return Reply(error=str(error))
        if status != 200:
            return Reply(status, error=f"HTTP {status}: {_message(data)}")
        try:
            answer = json.loads(data)
        except ValueError:
            return Reply(status, error="the answer is not JSON")
        return (
            Reply(status, answer) if isinstance(answer, dict) else Reply(status, error="the answer is no object")
        )

    def complete(self, prompt: str | Sequence[int], max_tokens: int, **options: Any) -> Answer:
        """A streamed /v1/completions at temperature 0. Never raises for what the server does."""
        body = {"prompt": prompt if isinstance(prompt, str) else list(prompt), **self._common(max_tokens, options)}
        return self._stream("/v1/completions", body)

    def chat(self, text: str, max_tokens: int, **options: Any) -> Answer:
        """A streamed /v1/chat/completions with one user message at temperature 0."""
        body = {"messages": [{"role": "user", "content": text}], **self._common(max_tokens, options)}
        return self._stream("/v1/chat/completions", body)

    def _common(self, max_tokens: int, options: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def _call(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, bytes]:
        connection = self._connect(timeout_s)
        silent = True
        try:
            payload = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"} if payload else {}
            # redirects are not followed: nothing is sent anywhere else
            connection.request(method, self._root + path, payload, {**headers, **self._headers})
            response = connection.getresponse()
            silent = False
            return response.status, response.read(_BODY_LIMIT)
        except (OSError, UnicodeError, http.client.HTTPException) as error:  # a label of 64 letters is no name
            spoke = isinstance(error, ssl.SSLError) or not isinstance(error, (OSError, UnicodeError))
            kind = NoServerError if silent and not spoke else ServerError
            raise kind(f"{path}: {_reason(error, timeout_s)}") from None
        finally:
            connection.close()

    def _json(self, status: int, body: bytes) -> Any:
        if status != 200:
            raise ServerError(f"HTTP {status}: {_message(body)}")
        try:
            return json.loads(body)
        except ValueError:
            raise ServerError("the answer is not JSON") from None

    def _stream(self, path: str, body: Mapping[str, Any]) -> Answer:
        reader = _StreamReader()
        began = time.monotonic()
        deadline = began + self.deadline_s
        connection = self._connect(self.deadline_s)
        try:
            headers = {"Content-Type": "application/json", **self._headers}
            connection.request("POST", self._root + path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            reader.status = response.status
            if response.status != 200:
                reader.error = f"HTTP {response.status}: {_message(response.read(_BODY_LIMIT))}"
            else:
                for event in _events(response, connection, deadline):
                    reader.take(event, time.monotonic() - began)
                    if reader.done or reader.error:
                        break
                if not reader.done and reader.error is None:
                    reader.error = "the stream ended before its last message"
        except TimeoutError:
            reader.timed_out = True
            reader.error = f"no whole answer within {self.deadline_s:g} s"
        except (OSError, http.client.HTTPException) as error:
            reader.error = _reason(error, self.deadline_s)
        finally:
            connection.close()
        return reader.answer(time.monotonic() - began)


class _StreamReader:
    """Collects the messages of one stream."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.error: str | None = None
        self.timed_out = False
        self.done = False
        self.arrivals: list[float] = []
        self.usage_last = False
        self.parts: list[str] = []
        self.finish: str | None = None
        self.usage: Mapping[str, Any] = {}
        self.tokens: list[str] = []
        self.tops: list[Mapping[str, float]] = []

    def take(self, data: str, at: float) -> None:
        if data == "[DONE]":
            self.done = True
            return
        try:
            message = json.loads(data)
        except ValueError:
            self.error = f"a message of the stream is not JSON: {data[:80]!r}"
            return
        if not isinstance(message, dict) or message.get("error") or "choices" not in message:
            # vLLM ends the stream of a dead engine with an error object and HTTP status 200
            self.error = f"the stream ended with an error: {_error_text(message)}"
            return
        if isinstance(message.get("usage"), dict):
            self.usage = message["usage"]
            self.usage_last = not message["choices"]
        for choice in message["choices"]:
            self._choice(choice, at)

    def _choice(self, choice: Mapping[str, Any], at: float) -> None:
        delta = choice.get("delta") or {}
        # reasoning parsers move text into a field of their own; it is generated text all the same
        text = choice.get("text") or delta.get("content") or ""
        text += delta.get("reasoning_content") or delta.get("reasoning") or ""
        logprobs = choice.get("logprobs") or {}
        self.tokens += logprobs.get("tokens") or []
        self.tops += [_numbers(top) for top in logprobs.get("top_logprobs") or []]
        # a message of /v1/completions always has tokens, though their text may be empty (half a character);
        # the first one of a chat only names the role
        if "text" in choice or text or logprobs.get("tokens"):
            self.arrivals.append(at)
        self.parts.append(text)
        self.finish = choice.get("finish_reason") or self.finish

    def answer(self, total: float) -> Answer:
        details = self.usage.get("prompt_tokens_details") or {}
        return Answer(
            status=self.status,
            text="".join(self.parts),
            finish_reason=self.finish,
            prompt_tokens=_whole(self.usage.get("prompt_tokens")),
            completion_tokens=_whole(self.usage.get("completion_tokens")),
            cached_tokens=_whole(details.get("cached_tokens")) if isinstance(details, dict) else None,
            ttft_s=self.arrivals[0] if self.arrivals else None,
            total_s=self.arrivals[-1] if self.arrivals and self.error is None else total,
            tokens=tuple(self.tokens),
            top_logprobs=tuple(self.tops),
            arrivals_s=tuple(self.arrivals),
            usage_last=self.usage_last,
            error=self.error,
            timed_out=self.timed_out,
        )


def _events(
    response: http.client.HTTPResponse, connection: http.client.HTTPConnection, deadline: float
) -> Iterator[str]:
    """The data of each server-sent event. Raises TimeoutError at the deadline."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:  # None once the server has announced the end
            connection.sock.settimeout(left)
        line = response.readline(_BODY_LIMIT)
        if not line:
            return
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8", "replace")


def _numbers(top: Any) -> Mapping[str, float]:
    return {t: NOT_A_NUMBER if v is None else v for t, v in top.items()} if isinstance(top, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _message(body: bytes) -> str:
    try:
        return _error_text(json.loads(body))
    except ValueError:
        return body[:200].decode("utf-8", "replace").strip() or "empty answer"


def _error_text(message: Any) -> str:
    inner = message.get("error", message) if isinstance(message, dict) else message
    if isinstance(inner, dict):
        inner = inner.get("message") or inner.get("detail") or json.dumps(inner)
    return " ".join(str(inner).split())[:300]


def _reason(error: BaseException, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended in the middle of the answer"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
