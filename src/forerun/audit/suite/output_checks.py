"""Checks of greedy output: alone, beside other requests, replayed, long, aborted, and near the limits."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Final

from forerun.audit.parity.answer_pairs import AnswerPair
from forerun.audit.suite.finding import Finding, failed, not_applicable
from forerun.audit.suite.session import GREEDY, Session
from forerun.errors import ServerFailed
from forerun.servers.completions import Prompt
from forerun.servers.concurrency import map_concurrent

NUM_TOKENS: Final = 48
LONG_TOKENS: Final = 192
MAX_PREFILL_SECONDS: Final = 60.0
"""A prompt near the context limit is not sent if its prefill is likely to take longer."""

_NOT_COMPARABLE: Final = (
    "the server takes no token ids, so nothing says what it generates without speculation: give --baseline"
)

REPEATING: Final = (
    Prompt("One, two, three, four, five, one, two, three, four, five, one, two,"),
    Prompt(
        "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n"
        "    return width * height * depth\n\n\ndef area(width, height):\n    return"
    ),
)
"""Prompts whose continuation repeats itself, so that many draft tokens are accepted in a row."""


def greedy(session: Session) -> Finding:
    """Greedy output equals that of decoding without speculation."""
    if not session.can_expect:
        return not_applicable(_NOT_COMPARABLE)
    pairs = [_against_expected(session, prompt, NUM_TOKENS) for prompt in session.prompts]
    return session.compare(pairs, "outputs", f"{len(pairs)} outputs identical to no speculation")


def long_drafts(session: Session) -> Finding:
    """Long output of text that repeats itself, where long drafts are accepted."""
    if not session.can_expect:
        return not_applicable(_NOT_COMPARABLE)
    pairs = [_against_expected(session, prompt, LONG_TOKENS) for prompt in REPEATING]
    return session.compare(pairs, "long outputs", f"{len(pairs)} outputs of {LONG_TOKENS} tokens identical")


def _against_expected(session: Session, prompt: Prompt, max_tokens: int) -> AnswerPair:
    output = session.generate(prompt, max_tokens)
    return session.pair(prompt, session.expected(prompt, max_tokens), output)


def cache_replay(session: Session) -> Finding:
    """A prompt, another, and the first again give the outputs of the first time."""
    first = {prompt: session.generate(prompt, NUM_TOKENS) for prompt in session.prompts}
    pairs = []
    for one, other in zip(session.prompts, session.prompts[1:], strict=False):
        session.generate(other, NUM_TOKENS)
        pairs.append(session.pair(one, first[one].tokens, session.generate(one, NUM_TOKENS)))
    return session.compare(pairs, "repeated outputs", f"{len(pairs)} outputs identical when repeated")


def shared_prefix(session: Session) -> Finding:
    """Prompts with a long common prefix, sent one after the other, give the output of decoding without
    speculation: a prefix cache must not change it.
    """
    if not session.can_expect:
        return not_applicable(_NOT_COMPARABLE)
    prefix = " ".join(prompt.text for prompt in session.prompts if prompt.text) * 2
    if not prefix:
        return not_applicable("the prompts are token ids: give prompts as text")
    prompts = [Prompt(f"{prefix} {ending}") for ending in ("The", "Name: Anna, Age:", "The")]
    pairs = [_against_expected(session, prompt, NUM_TOKENS) for prompt in prompts]
    return session.compare(pairs, "outputs", f"{len(pairs)} outputs with a cached prefix identical")


def concurrency(session: Session) -> Finding:
    """Outputs do not depend on the number of requests in flight."""
    alone = {prompt: session.generate(prompt, NUM_TOKENS) for prompt in session.prompts}
    pairs: list[AnswerPair] = []
    sizes = [size for size in (2, 4, 8, 16, 32, 64) if size <= session.concurrency]
    for size in sizes:
        requests = [session.prompts[number % len(session.prompts)] for number in range(size)]
        outputs = map_concurrent(lambda prompt: session.generate(prompt, NUM_TOKENS), requests, size)
        pairs += [
            session.pair(prompt, alone[prompt].tokens, output)
            for prompt, output in zip(requests, outputs, strict=True)
        ]
    tested = ", ".join(map(str, sizes))
    return session.compare(pairs, "outputs", f"outputs identical with {tested} requests in flight")


def aborts(session: Session) -> Finding:
    """Requests that clients abort do not change the output of others, then or later."""
    alone = {prompt: session.generate(prompt, NUM_TOKENS) for prompt in session.prompts}
    kept = [*session.prompts] * 2
    aborted = [*session.prompts, *REPEATING]
    with ThreadPoolExecutor(len(kept) + len(aborted)) as pool:
        running = [pool.submit(session.generate, prompt, NUM_TOKENS) for prompt in kept]
        broken = [pool.submit(_abort, session, prompt, number + 1) for number, prompt in enumerate(aborted)]
        outputs = [each.result() for each in running]
        for each in broken:
            each.result()
    outputs += [session.generate(prompt, NUM_TOKENS) for prompt in session.prompts]
    pairs = [
        session.pair(prompt, alone[prompt].tokens, output)
        for prompt, output in zip([*kept, *session.prompts], outputs, strict=True)
    ]
    return session.compare(
        pairs, "outputs", f"{len(pairs)} outputs identical beside and after {len(aborted)} aborted requests"
    )


def _abort(session: Session, prompt: Prompt, num_events: int) -> None:
    """Begin a streamed completion, read a few events, and close the connection."""
    body = session.body(prompt, 4 * NUM_TOKENS, GREEDY, session.candidate)
    with suppress(ServerFailed), session.candidate.stream("/completions", body) as events:
        for _ in islice(events, num_events):
            pass


def max_tokens(session: Session) -> Finding:
    """Outputs have exactly the maximum number of tokens: no accepted draft token exceeds it."""
    prompt = REPEATING[0] if not session.prompts or session.prompts[0].text else session.prompts[0]
    long = session.generate(prompt, NUM_TOKENS)
    faults, pairs = [], []
    for limit in range(1, 13):
        output = session.generate(prompt, limit)
        num = output.num_tokens
        reported = output.usage.get("completion_tokens", num)
        if num > limit or reported > limit or (num < limit and output.finish_reason != "stop"):
            faults.append({"max_tokens": limit, "tokens": num, "completion_tokens": reported})
        pairs.append(session.pair(prompt, long.tokens[:limit], output))
    if faults:
        return failed(f"{len(faults)} of 12 outputs do not have the requested length", faults)
    return session.compare(pairs, "short outputs", "outputs of 1 to 12 tokens have exactly that length")


def context_limit(session: Session) -> Finding:
    """Output up to the last position of the context equals that of decoding without speculation, and the
    server goes on afterwards.
    """
    limit = session.candidate.max_length
    if limit is None:
        return not_applicable("the server does not state its context length (`max_model_len` of /v1/models)")
    if not session.can_expect or not session.candidate.dialect.accepts_token_ids:
        return not_applicable(_NOT_COMPARABLE)
    ids = session.generate(REPEATING[0], 1).prompt_ids
    if not ids:
        return not_applicable("the server does not return the token ids of a prompt")
    began = time.perf_counter()
    session.generate(Prompt(ids=(ids * limit)[: limit // 8]), 1)
    seconds = 8 * (time.perf_counter() - began)
    if seconds > MAX_PREFILL_SECONDS and not session.thorough:
        return not_applicable(
            f"a prompt of {limit:,} tokens would take about {seconds:.0f} s: use --thorough, or start the"
            " servers with a smaller --max-model-len"
        )
    num_left = 12
    prompt = Prompt(ids=(ids * limit)[: limit - num_left])
    output = session.generate(prompt, num_left)
    pair = session.pair(prompt, session.expected(prompt, num_left), output)
    after = session.generate(REPEATING[0], NUM_TOKENS)
    if not after.tokens:
        return failed("the server generates nothing after a request that reached the context limit", [])
    return session.compare([pair], "outputs", f"the last {num_left} tokens of {limit:,} identical")


def prefix_cache(session: Session) -> Finding:
    """The same prompt again and again, alone and concurrently, gives the same output."""
    prompts = session.prompts[:2]
    first = {prompt: session.generate(prompt, NUM_TOKENS) for prompt in prompts}
    requests = [prompt for prompt in prompts for _ in range(3)]
    outputs = [session.generate(prompt, NUM_TOKENS) for prompt in requests]
    outputs += map_concurrent(lambda prompt: session.generate(prompt, NUM_TOKENS), requests, 4)
    pairs = [
        session.pair(prompt, first[prompt].tokens, output)
        for prompt, output in zip(requests * 2, outputs, strict=True)
    ]
    return session.compare(pairs, "repeated outputs", f"{len(pairs)} repetitions identical")
