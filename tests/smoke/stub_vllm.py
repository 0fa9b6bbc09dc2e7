"""A stand-in for ``vllm serve``: same start lines, endpoints, counters and stream format, and ways to fail.

It is started through a fake ``ENV/bin/vllm``. What it does wrong comes in VLLM_STUB, a list of words:

    die:NAME        prints tests/smoke/deaths/NAME.log while loading and exits 1
    kill-self       ends by SIGKILL while loading
    hang:PHASE      prints the lines up to a phase and never listens
    dies-on-request healthy; the first completion ends with an error object, then the process exits 1
    engine-dead     as above, but the API server lives on and answers HTTP 500
    stream-error    every stream ends with an error object, the process lives
    cut-stream      the stream ends without its last message
    http-500        completions answer 500
    silent          completions never answer
    garbage-metrics /metrics is not Prometheus text
    no-details      usage has no prompt_tokens_details
    miscount        cached tokens are no multiple of the block
    never-cached    prefix caching never hits
    third-only      the first hit comes with the third request
    no-drafts       speculative counters stay 0
    no-accept       nothing is accepted
    drifting        a greedy answer differs the second time, surely
    rounding        it differs where two tokens are nearly equal
    jit             the first request of each length takes 0.6 s longer and names a compiled kernel
    jit-loaded      it names the kernel and is as quick as later ones
    slow-first      it takes longer and names nothing
    recalls         an answer repeats every word of its prompt; "forgets": only of a prompt that is new
    shifts:NAME     log-probabilities of a cached answer are off, where the server has "mtp", "cache" or "both"
    wobbles         log-probabilities move a little each time, on every server
    slow-mtp        decoding takes longer with MTP
    needs:FLAG      exits 1 while loading unless it was given FLAG, or FLAG=VALUE; "refuses:FLAG": if it was
    longest:N       a context of more than N tokens does not fit, as vLLM says it
    dies-in:NAME    exits 1 while loading when its log is NAME.log
    compiles        a first start compiles into $VLLM_CACHE_ROOT and has a smaller KV cache than later ones
    no-again        as above, and a later start ends with an error
    no-base         without MTP and prefix caching the server does not start
    no-template     chat answers HTTP 400
    bad-template    chat answers HTTP 400 because its template cannot be rendered
    other-template  a chat has a token more than /tokenize makes of it
    ignores-stop    the stop text is in the answer, and it goes on
    short-by-one    answers under 10 tokens are a token short
    parts-streams   a stream of 32 tokens has another text than the answer in one piece
    in-one-piece    a stream of 32 tokens arrives in one piece
    bad-json        JSON does not follow its schema
    bad-arguments   nor do the arguments of a forced tool call
    wrong-parser    a free tool call comes back as text
    ignores-bias    logit_bias has no effect; "ignores-min-p" the same
    one-at-a-time   requests queue
    leaks           a request with a stop text leaves 48 MiB behind
    children        starts a child with a cleared environment and one in a session of its own
    stubborn        everything ignores SIGTERM
    orphans         the main process is killed with SIGKILL after it became healthy, its children live on
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stub_answers import (
    CACHE,
    MTP,
    WORDS,
    State,
    argument,
    cached_tokens,
    count,
    generate,
    metrics,
    refusal,
    rendered,
    usage,
    word,
)  # fmt: skip

HERE = os.path.dirname(os.path.abspath(__file__))
#: As in vLLM 0.32.0; 0.26.0 has the same text.
JIT_LINE = (
    "(Worker pid=9) WARNING 11-30 10:50:50 [jit_monitor.py:131] Triton kernel JIT compilation during inference: "
    "_kernel_{}. This causes a latency spike; consider extending warmup to cover this shape/config."
)
#: (phase, line) of a start, after vLLM 0.32.0 on a CPU.
with open(os.path.join(HERE, "start.log"), encoding="utf-8") as _file:
    LINES = [tuple(line.rstrip("\n").split("\t", 1)) for line in _file]


def say(line):
    print(line, flush=True)


def say_death(name):
    with open(os.path.join(HERE, "deaths", f"{name}.log"), encoding="utf-8") as file:
        say(file.read())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json"):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/health":
            self.reply(200, "")
        elif self.path == "/v1/models":
            length = int(argument("--max-model-len", "4096"))
            self.reply(200, {"data": [{"id": "smoke", "max_model_len": length}]})
        elif self.path == "/metrics":
            self.reply(
                200, "<html>not metrics</html>\n" if "garbage-metrics" in WORDS else metrics(), "text/plain"
            )
        else:
            self.reply(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            words = body["prompt"].split() if "prompt" in body else rendered(body)
            State.words.update((zlib.crc32(w.encode()), w) for w in words)
            self.reply(200, {"tokens": [zlib.crc32(w.encode()) for w in words]})
            return
        if "messages" in body and "no-template" in WORDS:
            self.reply(400, {"error": {"message": "no chat template is defined for this tokenizer"}})
            return
        if "messages" in body and "bad-template" in WORDS:
            self.reply(400, {"error": {"message": "'str object' has no attribute 'role'"}})
            return
        if "silent" in WORDS:
            time.sleep(60)
        if "http-500" in WORDS or ("engine-dead" in WORDS and State.asked):
            self.reply(500, {"error": {"message": "EngineCore encountered an issue."}})
            return
        refused = refusal(body)
        if refused and body.get("stream") and "with speculative decoding" in refused:
            # the engine's own check comes after the stream has begun
            self.begin_stream()
            self.event({"error": {"message": refused, "code": 400}})
            return
        if refused:
            self.reply(400, {"error": {"message": refused, "code": 400}})
            return
        if body.get("stop") and "leaks" in WORDS:
            State.held.append(bytearray(os.urandom(1 << 20) * 48))
        with State.lock:
            State.active += 1
        with State.one if "one-at-a-time" in WORDS else contextlib.nullcontext():
            if "one-at-a-time" in WORDS:
                time.sleep(0.1)
            self.answer(body)
        with State.lock:
            State.active -= 1

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def answer(self, body):
        if body.get("stream"):
            self.begin_stream()
        with State.lock:
            State.asked += 1
            prompt = body.get("prompt", "chat")
            key = json.dumps(prompt)
            size = len(prompt) if isinstance(prompt, list) else 0
            if size not in State.shapes and {"jit", "jit-loaded", "slow-first"} & set(WORDS):
                State.shapes.add(size)
                if "slow-first" not in WORDS:
                    say(JIT_LINE.format(size))
                if "jit-loaded" not in WORDS:
                    time.sleep(0.6)
            tokens = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
            if "messages" in body:
                tokens = len(rendered(body)) + ("other-template" in WORDS)
            seen = State.cache.get(key, 0)
            State.cache[key] = seen + 1
            cached = cached_tokens(tokens, seen)
            State.queries += tokens
            State.hits += cached
        if "dies-on-request" in WORDS or "engine-dead" in WORDS:
            say_death("align-kernel")
            self.event(
                {"error": {"message": "EngineCore encountered an issue. See stack trace (above).", "code": 500}}
            )
            self.wfile.flush()
            if "dies-on-request" in WORDS:
                threading.Timer(0.1, lambda: os._exit(1)).start()
            return
        if "stream-error" in WORDS:
            self.event({"object": "error", "message": "something odd", "code": 400})
            return
        if body.get("stream"):
            self.stream(body, tokens, cached, seen)
        else:
            self.whole(body, tokens, cached, seen)

    def stream(self, body, prompt_tokens, cached, seen):
        made, finish = generate(body, seen)
        if body["max_tokens"] == 32 and "in-one-piece" in WORDS:
            made = [("".join(t for t, _ in made), {})]
        for number, (text, top) in enumerate(made):
            if "slow-mtp" in WORDS and MTP and number:
                time.sleep(0.002)
            if number == 9 and body["max_tokens"] == 32 and "parts-streams" in WORDS:
                text = ""
            choice = {"index": 0, "finish_reason": finish if number == len(made) - 1 else None}
            if "messages" in body:
                choice["delta"] = {"content": text}
            else:
                choice["text"] = text
            if body.get("logprobs"):
                choice["logprobs"] = {"tokens": [text], "top_logprobs": [top]}
            self.event({"choices": [choice]})
        if "cut-stream" in WORDS:
            return
        count(body)
        tokens = body["max_tokens"] if "in-one-piece" in WORDS else len(made)
        self.event({"choices": [], "usage": usage(prompt_tokens, tokens, cached)})
        self.wfile.write(b"data: [DONE]\n\n")

    def whole(self, body, prompt_tokens, cached, seen):
        made, finish = generate(body, seen)
        count(body)
        text, calls = "".join(t for t, _ in made), None
        ship = '{"cargo": "copper", "docked": true}'
        if body.get("response_format"):
            text, finish = ('{"cargo": 7}' if "bad-json" in WORDS else ship), "stop"
        if body.get("tools"):
            forced = isinstance(body["tool_choice"], dict)
            arguments = '{"cargo": 7}' if "bad-arguments" in WORDS else ship
            calls = [{"function": {"name": "describe_ship", "arguments": arguments}}]
            text = ""
            if not forced and "wrong-parser" in WORDS:
                text, calls = '<tool>{"name": "describe_ship", "arguments": {}}</tool>', None
        choice = {"index": 0, "finish_reason": finish}
        if "messages" in body:
            choice["message"] = {"content": text, "tool_calls": calls}
        else:
            choice["text"] = text
        if body.get("logprobs"):
            choice["logprobs"] = {"tokens": [t for t, _ in made], "top_logprobs": [top for _, top in made]}
        if body.get("return_token_ids"):
            choice["token_ids"] = list(range(len(made)))
        self.reply(200, {"choices": [choice], "usage": usage(prompt_tokens, len(made), cached)})

    def event(self, message):
        self.wfile.write(b"data: " + json.dumps(message).encode() + b"\n\n")


def child(*extra):
    code = "import signal,sys,time\n"
    if "stubborn" in WORDS:
        code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "time.sleep(300)\n"
    # like setproctitle, which overwrites the environment that /proc shows
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, "stub-child"], env={}, **(extra[0] if extra else {})
    )
    note(process.pid)


def note(pid):
    """Tells the test which processes there were: it checks for itself that they are gone."""
    if os.environ.get("VLLM_STUB_PIDS"):
        with open(os.environ["VLLM_STUB_PIDS"], "a") as file:
            file.write(f"{pid}\n")


def given(wanted):
    flag, _, value = wanted.partition("=")
    return flag in sys.argv and (not value or argument(flag) == value)


def refused():
    """Whether the arguments, or the log that it writes to, make it end while loading."""
    if any(
        (w.startswith("needs:") and not given(w[6:])) or (w.startswith("refuses:") and given(w[8:])) for w in WORDS
    ):
        return True
    return word("dies-in") == os.path.basename(os.path.realpath("/proc/self/fd/1")).removesuffix(".log")


def compile_once():
    """After vLLM 0.26.0 on a GPU: the lines that tell a cold start from a warm one, and its KV cache."""
    cache = os.path.join(os.environ["VLLM_CACHE_ROOT"], "stub")
    warm = os.path.exists(cache)
    if warm and "no-again" in WORDS:
        say_death("nothing")
        sys.exit(1)
    if warm:
        say(
            "(EngineCore pid=2) INFO 11-30 10:00:00 [decorators.py:640] Directly load AOT compilation from path /c"
        )
    else:
        open(cache, "w").close()
        say("(EngineCore pid=2) INFO 11-30 10:00:00 [backends.py:390] Compiling a graph for compile range (1, 9)")
    gib, tokens = (9.5, 300_000) if warm else (8.0, 240_000)
    LINES[:] = [(p, x) for p, x in LINES if "KV cache size" not in x]
    say(f"(EngineCore pid=2) INFO 11-30 10:00:00 [gpu_worker.py:390] Available KV cache memory: {gib} GiB")
    say(f"(EngineCore pid=2) INFO 11-30 10:00:00 [kv_cache_utils.py:1700] GPU KV cache size: {tokens:,} tokens")


def main():
    note(os.getpid())
    if refused():
        say_death("nothing")
        sys.exit(1)
    length, longest = int(argument("--max-model-len", "0")), int(word("longest") or 0)
    if longest and length > longest:
        say(
            "(EngineCore pid=2) ERROR 11-30 10:00:00 [core.py:1401] ValueError: To serve at least one request "
            f"with the model's max seq len ({length}), (9.23 GiB KV cache is needed, which is larger than the "
            "available KV cache memory (6.89 GiB). Based on the available memory, the estimated maximum model "
            f"length is {longest}. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the "
            "CPU backend) or decreasing `max_model_len` when initializing the engine."
        )
        sys.exit(1)
    if os.environ.get("VLLM_STUB_SAYS"):
        say(os.environ["VLLM_STUB_SAYS"])
    if "no-base" in WORDS and not MTP and not CACHE:
        say_death("nothing")
        sys.exit(1)
    if word("die"):
        say(LINES[0][1])
        say(LINES[3][1])
        say_death(word("die"))
        sys.exit(1)
    if "stubborn" in WORDS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if {"children", "stubborn", "orphans"} & set(WORDS):
        child()
        child({"start_new_session": True})
    stop_at = word("hang")
    if {"compiles", "no-again"} & set(WORDS):
        compile_once()
    for phase, line in LINES:
        say(line)
        if stop_at == phase:
            time.sleep(300)
    if "kill-self" in WORDS:
        os.kill(os.getpid(), signal.SIGKILL)
    address = (argument("--host"), int(argument("--port")))
    ThreadingHTTPServer.address_family = socket.AF_INET
    server = ThreadingHTTPServer(address, Handler)
    server.daemon_threads = True
    if "orphans" in WORDS:
        threading.Timer(0.6, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    server.serve_forever(0.05)


main()
