"""Speeds, latencies and acceptance of recorded answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from forerun.bench.record import StepCosts
from forerun.bench.recorded_answer import RecordedAnswer
from forerun.bench.replay import MIN_OUTPUT_TOKENS

Pair = tuple[RecordedAnswer, RecordedAnswer]
"""A baseline's answer and another one to the same case."""


def are_timed(baseline: RecordedAnswer, other: RecordedAnswer) -> bool:
    """Whether both answers are long enough to have a decoding speed."""
    long_enough = min(baseline.num_tokens, other.num_tokens) >= MIN_OUTPUT_TOKENS
    return long_enough and bool(baseline.tokens_per_second and other.tokens_per_second)


def decoding_speed(answer: RecordedAnswer) -> float:
    """Tokens per second from the first token to the last; 0 if there is no speed."""
    return answer.tokens_per_second or 0.0


def end_to_end_speed(answer: RecordedAnswer) -> float:
    """Tokens per second from sending the request to the last token."""
    return answer.num_tokens / (answer.times[-1] - answer.sent)


def throughput(answers: Sequence[RecordedAnswer]) -> float:
    """Tokens per second over all concurrent requests."""
    groups: dict[tuple[int, int], list[RecordedAnswer]] = defaultdict(list)
    for each in answers:
        groups[each.case.run, each.case.group].append(each)
    seconds = sum(max(each.times[-1] for each in some) for some in groups.values())
    return sum(each.num_tokens for each in answers) / seconds if seconds else 0.0


def inter_token_latencies(answer: RecordedAnswer) -> Iterator[float]:
    """Seconds before each later token; 0 between tokens of the same event."""
    for (before, at), count in zip(pairwise(answer.times), answer.counts[1:], strict=True):
        yield at - before
        yield from (0.0,) * (count - 1)


def survival(answers: Sequence[RecordedAnswer]) -> tuple[float, ...]:
    """The share of steps that accept at least 1, 2, ... draft tokens; empty if servers do not report it."""
    accepted = np.array([each for answer in answers for each in answer.accepted_per_step or ()])
    num_steps = sum(answer.num_steps or 0 for answer in answers)
    if not accepted.size or not accepted.max():
        return ()
    return tuple(float((accepted >= depth).sum() / num_steps) for depth in range(1, int(accepted.max()) + 1))


def speedup_limit(answer: RecordedAnswer, costs: StepCosts | None) -> float | None:
    """The estimated speedup limit of the draft tokens that were accepted (theorem 3.8 for trees).

    It is the cost of as many non-speculative steps over the cost of the steps that were made, by the measured
    cost of a step with that number of rows. It assumes that drafting is free and that concurrent requests
    have drafts of equal length.
    """
    if not costs or answer.drafted_per_step is None or answer.num_steps is None:
        return None
    rows, seconds = zip(*sorted(costs.items()), strict=True)
    concurrency = answer.case.concurrency
    drafted = np.zeros(max(answer.num_steps, 1))
    drafted[: len(answer.drafted_per_step)] = answer.drafted_per_step
    total = np.interp(concurrency * (1 + drafted), rows, seconds).sum()
    return float(answer.num_later_tokens * np.interp(concurrency, rows, seconds) / total)
