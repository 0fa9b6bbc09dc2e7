"""What the client makes of a stream, message by message, and of a server that is not there."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from doctor.serve.client import NOT_A_NUMBER, Client, ServerError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
BAD = b'HTTP/1.1 400 Bad\r\nContent-Length: 34\r\n\r\n{"error":{"message":"too   long"}}'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}}}\n\n'
)


@contextmanager
def server(*pieces: bytes | float) -> Iterator[Client]:
    """Answers one connection with these pieces; a number is a pause in seconds."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                request = b""
                # all of it: closing with unread data would reset the connection
                while not request.rpartition(b"\r\n\r\n")[2].endswith(b"}") and b"GET" not in request:
                    request += connection.recv(1 << 16)
                for piece in pieces:
                    if isinstance(piece, float):
                        time.sleep(piece)
                    else:
                        connection.sendall(piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Client(listener.getsockname()[1], "m", deadline_s=1.0)


def test_a_whole_answer_with_times() -> None:
    with server(
        OK, 0.1, b'data: {"choices":[{"text":"a b"}]}\n\n', 0.1,
        b'data: {"choices":[{"text":"c","finish_reason":"length"}]}\n\n', USAGE, b"data: [DONE]\n\n",
    ) as client:  # fmt: skip
        answer = client.complete("x", 3)
    assert answer.ok
    assert (answer.text, answer.finish_reason) == ("a bc", "length")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (6, 3, 0)
    assert answer.ttft_s is not None
    assert 0.09 < answer.ttft_s < answer.total_s < 1.0
    assert answer.decode_tokens_per_s == pytest.approx(2 / (answer.total_s - answer.ttft_s))


def test_a_log_probability_that_is_not_a_number() -> None:
    line = b'data: {"choices":[{"text":"a","logprobs":{"tokens":["a"],"top_logprobs":[{"a":null,"b":-1.5}]}}]}\n\n'
    with server(OK, line, USAGE, b"data: [DONE]\n\n") as client:
        assert client.complete("x", 1).top_logprobs == ({"a": NOT_A_NUMBER, "b": -1.5},)


def test_reasoning_counts_as_text() -> None:
    line = b'data: {"choices":[{"delta":{"reasoning_content":"hm"},"finish_reason":"stop"}]}\n\n'
    with server(OK, line, USAGE, b"data: [DONE]\n\n") as client:
        assert client.chat("x", 3).text == "hm"


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((OK, b'data: {"error":{"message":"EngineCore encountered an issue."}}\n\n'), "EngineCore encountered"),
        ((OK, b'data: {"object":"error","message":"m","code":400}\n\n', b"data: [DONE]\n\n"), "error: m"),
        ((OK, b'data: {"choices":[{"text":"a"}]}\n\n'), "before its last message"),
        ((OK, b"data: {oops\n\n"), "not JSON"),
        ((OK, 3.0), "within 1 s"),
        ((BAD,), "HTTP 400: too long"),
        ((b"",), "closed connection"),
        ((b"garbage\r\n\r\n",), "garbage"),
    ],
)  # fmt: skip
def test_answers_that_are_not_whole(pieces: tuple[bytes | float, ...], error: str) -> None:
    with server(*pieces) as client:
        answer = client.complete("x", 3)
    assert not answer.ok
    assert error in str(answer.error)


def test_a_slow_drip_ends_at_the_deadline() -> None:
    drip: list[bytes | float] = [OK]
    for _ in range(30):
        drip += [0.1, b'data: {"choices":[{"text":"a"}]}\n\n']
    began = time.monotonic()
    with server(*drip) as client:
        answer = client.complete("x", 99)
    assert answer.timed_out
    assert time.monotonic() - began < 1.5


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        client = Client(free.getsockname()[1], "m", deadline_s=1.0)
        assert not client.healthy()
        assert "refused" in str(client.complete("x", 1).error)
        calls: list[Callable[[], object]] = [
            client.metrics,
            lambda: client.tokenize("x"),
            lambda: client.get("/v1"),
        ]
        for call in calls:
            with pytest.raises(ServerError, match="refused"):
                call()


def test_tokens_must_be_numbers() -> None:
    body = b'{"tokens":["a"]}'
    with (
        server(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as client,
        pytest.raises(ServerError, match="no list of token ids"),
    ):
        client.tokenize("x")


def test_text_of_tokens() -> None:
    body = b'{"prompt":"a ship"}'
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as client:
        assert client.detokenize([1, 2]) == "a ship"
    body = b'{"prompt":null}'
    with (
        server(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as client,
        pytest.raises(ServerError, match="no text"),
    ):
        client.detokenize([1])
