"""What the stand-in of stub_vllm.py answers: tokens, counters, refusals. Its faults are listed there."""

import os
import sys
import threading

WORDS = os.environ.get("VLLM_STUB", "").split()
BLOCK = 544

MTP = "--speculative-config" in sys.argv
CACHE = "--no-enable-prefix-caching" not in sys.argv


def shifted():
    return {"mtp": MTP, "cache": CACHE, "both": MTP and CACHE}.get(word("shifts"), False)


class _State:
    def __init__(self):
        self.asked = 0
        self.cache = {}
        self.queries = self.hits = self.drafts = self.drafted = self.accepted = 0
        self.position = [0, 0]
        self.shapes = set()
        self.words = {}
        self.answers = self.active = 0
        self.held = []
        self.one = threading.Lock()
        self.lock = threading.Lock()


State = _State()


def argument(name, default=None):
    last = len(sys.argv) - 1 - sys.argv[::-1].index(name) if name in sys.argv else None  # as argparse does
    return default if last is None else sys.argv[last + 1]


def word(name):
    return next((w.partition(":")[2] for w in WORDS if w.split(":")[0] == name), None)


def cut(made, stop):
    """The tokens up to where the stop text begins."""
    left = "".join(t for t, _ in made).partition(stop)[0]
    out = []
    for text, top in made:
        out.append((text[: len(left)], top))
        left = left[len(text) :]
    return out


def generate(body, seen):
    """(text, top log-probabilities) of each token, and the finish reason."""
    wanted = body["max_tokens"]
    State.answers += 1
    prompt = body.get("prompt")
    recalls = "recalls" in WORDS or ("forgets" in WORDS and not seen)
    stop = (body.get("stop") or [None])[0]
    ids = body.get("return_tokens_as_token_ids")
    biased = next(iter(body.get("logit_bias") or ()), None) if "ignores-bias" not in WORDS else None
    out = []
    for number in range(wanted - ("short-by-one" in WORDS and wanted < 10)):
        off = 0.01 * (State.answers % 3) if "wobbles" in WORDS else 0.0
        if seen and number > 2 and shifted():
            off = 0.6
        text, top = f" t{number}", {f" t{number}": -0.01 - off, " other": -9.0}
        if ids:
            text = f"token_id:{biased or number}"
            if body.get("min_p") and body.get("temperature") and "ignores-min-p" in WORDS:
                text = "token_id:998"
            top = {text: -0.01 - off, "token_id:999": -9.0}
        if number == 0 and recalls and isinstance(prompt, list):
            text = " ".join(State.words.get(i, "") for i in prompt)
        if number == 5 and seen and "drifting" in WORDS and biased is None:
            text, top = " other", {" other": -0.02, " t5": -8.0}
        if number == 5 and "rounding" in WORDS and biased is None:
            top = {" t5": -0.69, " other": -0.70}
            text = " other" if seen else " t5"
        out.append((text, top))
        if stop and "ignores-stop" not in WORDS and stop in "".join(t for t, _ in out):
            return cut(out, stop), "stop"
    return out, "length"


def count(body):
    wanted = body["max_tokens"]
    with State.lock:
        if MTP and "no-drafts" not in WORDS:
            State.drafts += wanted // 2
            State.drafted += wanted // 2 * 2
            if "no-accept" not in WORDS:
                State.position[0] += wanted // 3
                State.position[1] += wanted // 6
                State.accepted = sum(State.position)


def cached_tokens(tokens, seen):
    if "never-cached" in WORDS or not CACHE or not seen or ("third-only" in WORDS and seen < 2):
        return 0
    blocks = max(0, tokens // BLOCK - 1)
    return max(0, blocks * BLOCK - (7 if "miscount" in WORDS and blocks else 0))


def refusal(body):
    """As vLLM 0.32 says it."""
    limited = body.get("logit_bias") or (body.get("min_p") and body.get("temperature"))
    if limited and MTP and "ignores-bias" not in WORDS:
        return "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
    if body.get("tool_choice") == "auto" and "--tool-call-parser" not in sys.argv:
        return '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    return None


def rendered(body):
    return ["<user>", *body["messages"][0]["content"].split(), "<assistant>"]


def usage(prompt_tokens, tokens, cached):
    out = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    if "no-details" not in WORDS:
        out["prompt_tokens_details"] = {"cached_tokens": cached}
    return out


def metrics():
    label = 'engine="0",model_name="smoke"'
    rows = {
        "vllm:prefix_cache_queries": State.queries,
        "vllm:prefix_cache_hits": State.hits,
    }
    if "--speculative-config" in sys.argv:
        rows |= {
            "vllm:spec_decode_num_drafts": State.drafts,
            "vllm:spec_decode_num_draft_tokens": State.drafted,
            "vllm:spec_decode_num_accepted_tokens": State.accepted,
        }
    out = ""
    for name, value in rows.items():
        out += f"# TYPE {name}_total counter\n{name}_total{{{label}}} {float(value)}\n"
        out += f"# TYPE {name}_created gauge\n{name}_created{{{label}}} 1.79e+09\n"
    if "--speculative-config" in sys.argv:
        for position, value in enumerate(State.position):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            out += f'{name}{{{label},position="{position}"}} {float(value)}\n'
    running = min(State.active, 1) if "one-at-a-time" in WORDS else State.active
    out += f"vllm:num_requests_running{{{label}}} {running}\n"
    out += f"vllm:num_requests_waiting{{{label}}} {State.active - running}\n"
    cache = f'block_size="{BLOCK}",enable_prefix_caching="True",mamba_block_size="16",engine="0"'
    return out + f"vllm:cache_config_info{{{cache}}} 1.0\n"
