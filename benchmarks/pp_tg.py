"""PP4096 and TG128 of a running server, as the Turing fork's benchmark rules ask: python benchmarks/pp_tg.py URL

A prompt of exactly 4,096 tokens of " the", 128 tokens generated with ignore_eos, one warm-up and three runs,
median. Prefill speed is the prompt by the time to the first token, generation speed the tokens after the first
by the time after it. Each run has its own cache salt, so that prefix caching gives nothing to a repeated prompt;
the cached tokens that the server reports are shown, and a run that hit the cache ends with 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from doctor.errors import DoctorError
from doctor.serve.client import Answer, Client, ServerError

FILLER = " the"


def measure(client: Client, prompt: list[int], generated: int) -> Answer:
    """One run that no cache helps. Raises ServerError when it did not end as asked."""
    answer = client.complete(prompt, generated, ignore_eos=True, cache_salt=uuid.uuid4().hex)
    if not answer.ok:
        raise ServerError(answer.error or "no answer")
    if answer.prompt_tokens != len(prompt) or answer.completion_tokens != generated:
        raise ServerError(f"asked for {len(prompt)} + {generated} tokens, got "
                          f"{answer.prompt_tokens} + {answer.completion_tokens}")  # fmt: skip
    return answer


def row(name: str, speeds: list[float]) -> str:
    """Median and the single runs, as a line of a Markdown table."""
    runs = ", ".join(f"{speed:.1f}" for speed in speeds)
    return f"| {name} | {statistics.median(speeds):.1f} | {runs} |"


def main(argv: list[str] | None = None) -> int:
    """0 measured, 1 the cache helped, 2 the server did not answer as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the prompt (4096)")
    parser.add_argument("--generate", type=int, default=128, help="tokens generated (128)")
    parser.add_argument("--runs", type=int, default=3, help="runs after the warm-up (3)")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds for one request (600)")
    args = parser.parse_args(argv)
    if args.prompt < 1 or args.generate < 2 or args.runs < 1:
        parser.error("--prompt and --runs want at least 1, --generate at least 2")
    try:
        client = Client.of_url(args.url, deadline_s=args.deadline)
        client.model = str(next((row.get("id") for row in client.models()), ""))
        filler = client.tokenize(FILLER)
        if not filler:
            raise ServerError(f"/tokenize gives nothing for {FILLER!r}")
        prompt = (filler * args.prompt)[: args.prompt]
        answers = [measure(client, prompt, args.generate) for _ in range(args.runs + 1)][1:]
    except (ServerError, DoctorError) as error:
        print(f"pp_tg: {error}", file=sys.stderr)
        return 2
    cached = [a.cached_tokens or 0 for a in answers]
    prefill = [args.prompt / a.ttft_s for a in answers if a.ttft_s]
    print(f"| tokens/s | median of {args.runs} | runs |\n|---|---|---|")
    print(row(f"PP{args.prompt}", prefill))
    print(row(f"TG{args.generate}", [speed for a in answers if (speed := a.decode_tokens_per_s)]))
    print(f"\nmodel {client.model}, one warm-up, filler {FILLER!r}, ignore_eos, cached tokens {cached}")
    return 1 if any(cached) else 0


if __name__ == "__main__":
    sys.exit(main())
