"""Scenarios of the parity matrix that are more than sampling settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from v2_bench.engine import BenchEngine, output_of
from v2_bench.settings import ASCII, PROMPTS, sampling_params

SEEDED = {"temperature": 0.8, "top_p": 0.95, "seed": 31}
GREEDY: dict[str, Any] = {"temperature": 0}


def long_prompt(number: int, length: int = 100) -> dict[str, Any]:
    """A prompt of several KV-cache blocks, different for each number."""
    base = [*PROMPTS[number % len(PROMPTS)], 150 + number]
    return {"prompt_token_ids": (base * length)[:length]}


def repeated_prompts(engine: BenchEngine) -> list[Any]:
    """Prompts A, B and A again: the second A hits the prefix cache."""
    params = sampling_params(SEEDED, 24)
    return [one for number in (0, 1, 0) for one in engine.generate([long_prompt(number)], params)]


def many_long_requests(engine: BenchEngine) -> list[Any]:
    """More KV cache than there is: requests are preempted where memory is little."""
    params = [sampling_params(SEEDED if number % 2 else GREEDY, 40) for number in range(8)]
    return engine.generate([long_prompt(number, 60) for number in range(8)], params)


def up_to_the_context(engine: BenchEngine) -> list[Any]:
    """Prompts near the maximum length: generation ends with the last token of the context."""
    prompts = [long_prompt(number, 256 - room) for number, room in enumerate((21, 8, 3, 2, 1))]
    return engine.generate(prompts, [sampling_params(SEEDED, 64), *[sampling_params(GREEDY, 64)] * 4])


def stop_strings(engine: BenchEngine) -> list[Any]:
    """Stop strings of every length that end at every token of a run, alone and with the string included."""
    ascii_only = {"temperature": 0, "allowed_token_ids": ASCII, "detokenize": True}
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS[:2]]
    texts = [one["text"] for one in engine.generate(prompts, sampling_params(ascii_only, 40))]
    params = [
        sampling_params({**ascii_only, "stop": [text[end - length : end]], **include}, 40)
        for text in texts
        for end in range(20, 24)
        for length, include in ((2, {}), (5, {"include_stop_str_in_output": True}))
    ]
    return engine.generate([prompt for prompt in prompts for _ in range(8)], params)


def aborted_requests(engine: BenchEngine) -> list[Any]:
    """Requests aborted while a step is in flight; the others, and new ones in their slots, are unaffected."""
    core = engine.llm.llm_engine
    finished: dict[str, Any] = {}

    def add(name: str, number: int) -> None:
        params = sampling_params(SEEDED if number % 2 else GREEDY, 32)
        core.add_request(name, {"prompt_token_ids": PROMPTS[number % 4]}, params)

    def step() -> None:
        for request in core.step():
            if request.finished and request.outputs[0].finish_reason != "abort":
                finished[request.request_id] = output_of(request, request.outputs[0])

    for number in range(6):
        add(f"first {number}", number)
    for number in range(5):
        step()
        core.abort_request([f"first {number}"] if number % 2 else [])
        add(f"second {number}", number + 1)
    while core.has_unfinished_requests():
        step()
    kept = [name for name in finished if name not in {"first 1", "first 3"}]
    return [{"name": name, **finished[name]} for name in sorted(kept)]


SCENARIOS: dict[str, Callable[[BenchEngine], list[Any]]] = {
    each.__name__: each
    for each in (
        repeated_prompts,
        many_long_requests,
        up_to_the_context,
        stop_strings,
        aborted_requests,
    )
}
NAMES = tuple(SCENARIOS)
