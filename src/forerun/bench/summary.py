"""Figures from a record: speeds as ratios to plain decoding in the same run, and what has no noise.

A ratio is the median, over a category's questions, of a contestant's decoding speed over its plain one's on
the same question; over categories it is the geometric mean of these. Intervals are bootstrapped, questions
drawn again within their categories.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from forerun.bench.output_check import OutputComparison, compare_outputs, pairs
from forerun.bench.record import TAKEN, BenchRecord, CaseKey, Costs, RecordedAnswer
from forerun.bench.replay import SHORTEST
from forerun.bench.systems import FORERUN
from forerun.types import FloatArray

RESAMPLES: Final = 2000
ALL: Final = "all of them"

Pair = tuple[RecordedAnswer, RecordedAnswer]
"""A plain answer, and another at the same place."""

Speeds = dict[tuple[str, CaseKey], float]
"""By who was asked, and what."""


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio with its 95 % confidence interval, which has no bounds where the data allow none."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The ratio as reports print it."""
        if math.isinf(self.high):
            return f"{self.value:.2f} (a single measurement: no interval)"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def contains_1(self) -> bool:
        """Whether no difference is shown."""
        return self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """The end of a sentence about the ratio."""
        return " (no difference shown: the interval contains 1)" if self.contains_1 else ""


@dataclass(frozen=True, slots=True)
class CategoryResult:
    """A contestant in a category, or in all: what its users see, and tokens per step, which has no noise.

    `limit` estimates the most that the accepted draft tokens allow, as a ratio like `over_plain`. It is
    computed from measured step costs, so a measured ratio can exceed it.
    """

    num: int
    speed: float
    over_plain: RatioEstimate
    end_to_end: RatioEstimate
    tokens_per_step: float | None
    guesses_per_step: float | None
    survival: tuple[float, ...]
    first_token: tuple[float, float]
    between_tokens: tuple[float, float, float]
    limit: RatioEstimate | None


@dataclass(frozen=True, slots=True)
class Beside:
    """Speeds over those of forerun's baseline in the same run: decoding speeds by category, a ratio for each
    question, and the throughput of each group of requests, a ratio for each group.
    """

    speeds: dict[str, tuple[float, ...]]
    groups: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SystemResult:
    """A contestant at a temperature and a width. `num_missing` answers were to be given, by it or by its
    plain one, and were not; `suspect` is who said something else at another setting. During `num_disturbed`
    answers others had too much of the machine.

    Who is faster than whom is told by way of forerun's plain one, which others ran beside in their own runs:
    `beside` has the speeds over its. Tokens per second are told at the pace that it has over all runs, since
    runs have their hours.
    """

    who: str
    baseline: str
    precision: str
    temperature: float
    width: int
    by_category: dict[str, CategoryResult]
    throughput: float
    words: OutputComparison
    num_missing: int = 0
    why: str = ""
    suspect: bool = False
    num_disturbed: int = 0
    beside: Beside = field(default_factory=lambda: Beside({}, ()), repr=False)
    between: tuple[float, ...] = field(default=(), repr=False)

    @property
    def overall(self) -> CategoryResult | None:
        """Over all categories; none where nothing could be timed."""
        return self.by_category.get(ALL)

    @property
    def sound(self) -> bool:
        """Whether its speed may stand in a table without a mark: all was answered, and nothing differs."""
        whole = not self.num_missing and self.overall is not None
        return whole and self.words.honest and not self.suspect


def summarise(record: BenchRecord) -> list[SystemResult]:
    """Every contestant at every temperature and width, in the order of the record."""
    usual = _usual(record)
    found = [
        _result(record, who, temperature, width, usual)
        for temperature, width in record.settings()
        for who in record.systems()
        if record.num_wanted(who, temperature, width)
    ]
    wrong = {each.who for each in found if not each.words.honest}
    return [replace(each, suspect=each.who in wrong) for each in found]


def _result(record: BenchRecord, who: str, temperature: float, width: int, usual: Speeds) -> SystemResult:
    facts = record.systems()[who]

    def here(each: RecordedAnswer) -> bool:
        return (each.who, each.place.temperature, each.place.width) == (who, temperature, width)

    mine = [each for each in record.answers.values() if here(each)]
    good = [each for each in mine if not each.error]
    matched = [(each, each) for each in good]
    if facts["plain"] != who:
        matched = [(plain, other) for plain, other in pairs(record) if here(other)]
    categories: dict[str, list[Pair]] = defaultdict(list)
    for plain, other in matched:
        if min(plain.num_tokens, other.num_tokens) >= SHORTEST and plain.speed and other.speed:
            categories[other.place.category].append((plain, other))
    told = record.costs if facts["plain"] == "vllm" else {}
    costs = {run: each for (run, drawn), each in told.items() if drawn == bool(temperature)}
    by_yardstick = _by_yardstick(record, good)
    pace = _pace(usual, by_yardstick)
    lines = {name: _line([some], costs, pace) for name, some in categories.items()}
    if lines:
        lines[ALL] = _line(list(categories.values()), costs, pace)
    gave_up = [why for (_, each), why in record.gave_up.items() if each == who]
    return SystemResult(
        who,
        facts["plain"],
        facts["precision"],
        temperature,
        width,
        lines,
        _throughput(good) * pace,
        compare_outputs(record, who, temperature, width),
        record.num_wanted(who, temperature, width) - len(matched),
        next((why for why in [*gave_up, *(each.error for each in mine)] if why), ""),
        num_disturbed=sum(each.stolen > TAKEN for each in good),
        beside=_beside(by_yardstick),
        between=tuple(gap for each in good for gap in gaps(each)),
    )


def _by_yardstick(record: BenchRecord, mine: Sequence[RecordedAnswer]) -> list[Pair]:
    """Answers with those of forerun's plain one at the same places."""
    shared = record.systems().get(FORERUN, {}).get("plain", "")
    both = [(record.answers.get((each.place, shared)), each) for each in mine]
    return [(plain, each) for plain, each in both if plain is not None and not plain.error]


def _beside(matched: Sequence[Pair]) -> Beside:
    """Speeds over the yardstick's."""
    ratios: dict[str, list[float]] = defaultdict(list)
    groups: dict[tuple[int, int], list[Pair]] = defaultdict(list)
    for plain, each in matched:
        groups[each.place.run, each.place.group].append((plain, each))
        if min(plain.num_tokens, each.num_tokens) >= SHORTEST and plain.speed and each.speed:
            ratios[each.place.category].append(each.speed / plain.speed)
    both = ([_throughput(answers) for answers in zip(*some, strict=True)] for some in groups.values())
    return Beside(
        {name: tuple(some) for name, some in ratios.items()},
        tuple(mine / plain for plain, mine in both if plain and mine),
    )


def compared(other: SystemResult, ours: SystemResult) -> dict[str, RatioEstimate]:
    """How fast one is beside another at the same setting: by category alone, where several requests run at a
    time by the throughput of all of them.
    """
    if ours.width > 1:
        both = (other.beside.groups, ours.beside.groups)
        return {ALL: _quotient(*map(np.array, both))} if all(both) else {}
    return {
        name: _quotient(np.array(other.beside.speeds[name]), np.array(speeds))
        for name, speeds in ours.beside.speeds.items()
        if name in other.beside.speeds
    }


def _quotient(above: FloatArray, below: FloatArray) -> RatioEstimate:
    """The median of one over the median of the other, both resampled; one value alone has no interval."""
    value = float(np.median(above) / np.median(below))
    if min(above.size, below.size) < 2:
        return RatioEstimate(value, 0.0, math.inf)
    noise = np.random.default_rng(0)
    drawn = [np.median(noise.choice(each, (RESAMPLES, each.size)), axis=1) for each in (above, below)]
    low, high = np.percentile(drawn[0] / drawn[1], (2.5, 97.5))
    return RatioEstimate(value, float(low), float(high))


def _usual(record: BenchRecord) -> Speeds:
    """Everybody's speed at every question, over all runs."""
    speeds: dict[tuple[str, CaseKey], list[float]] = defaultdict(list)
    for each in record.answers.values():
        if each.speed and not each.error:
            speeds[_asked(each)].append(each.speed)
    return {asked: float(np.median(some)) for asked, some in speeds.items()}


def _pace(usual: Speeds, matched: Sequence[Pair]) -> float:
    """The yardstick's speed over all runs, over that in the runs of these answers, question by question."""
    ratios = [usual[_asked(plain)] / plain.speed for plain, _ in matched if plain.speed]
    return float(np.median(ratios)) if ratios else 1.0


def _asked(answer: RecordedAnswer) -> tuple[str, CaseKey]:
    """Who was asked what, and how, in whichever run."""
    return answer.who, replace(answer.place, run=0, group=0)


def _line(categories: Sequence[Sequence[Pair]], costs: dict[int, Costs], pace: float) -> CategoryResult:
    """The figures of some answers, each with the plain one's, by category."""
    mine = [other for some in categories for _, other in some]
    steps = [each.num_steps for each in mine]
    known = sum(each for each in steps if each is not None) if None not in steps else 0
    guesses = sum(sum(each.guessed or ()) for each in mine)
    firsts = [each.times[0] - each.sent for each in mine]
    between = np.array([gap for each in mine for gap in gaps(each)] or [0.0])
    half, late, last = (float(each) for each in np.percentile(between, (50, 90, 99)))
    limits = [
        np.array([each for _, other in some if (each := limit(other, costs.get(other.place.run)))])
        for some in categories
    ]
    return CategoryResult(
        len(mine),
        float(np.median([each.speed for each in mine if each.speed])) * pace,
        ratio_of([_ratios(some, lambda each: each.speed or 0.0) for some in categories]),
        ratio_of([_ratios(some, _whole) for some in categories]),
        sum(each.num_later for each in mine) / known if known else None,
        guesses / known if known else None,
        survival(mine),
        (float(np.median(firsts)), float(np.percentile(firsts, 99))),
        (half, late, last),
        ratio_of(limits) if all(each.size for each in limits) else None,
    )


def _ratios(some: Sequence[Pair], speed: Callable[[RecordedAnswer], float]) -> FloatArray:
    return np.array([speed(other) / speed(plain) for plain, other in some])


def _whole(answer: RecordedAnswer) -> float:
    """Tokens per second from sending to the end."""
    return answer.num_tokens / (answer.times[-1] - answer.sent)


def middle(categories: Sequence[FloatArray]) -> float:
    """The geometric mean of the categories' medians."""
    return float(np.exp(np.mean([np.median(np.log(each)) for each in categories])))


def ratio_of(categories: Sequence[FloatArray]) -> RatioEstimate:
    """The same, with its interval."""
    noise = np.random.default_rng(0)
    logs = [np.log(each) for each in categories]
    drawn = np.mean([np.median(noise.choice(each, (RESAMPLES, each.size)), axis=1) for each in logs], axis=0)
    low, high = (float(np.exp(each)) for each in np.percentile(drawn, (2.5, 97.5)))
    return RatioEstimate(middle(categories), low, high)


def ratio_of_sums(above: FloatArray, below: FloatArray) -> RatioEstimate:
    """What all of one come to, over all of the other, pair by pair, with its interval."""
    picks = np.random.default_rng(0).integers(above.size, size=(RESAMPLES, above.size))
    low, high = np.percentile(above[picks].sum(axis=1) / below[picks].sum(axis=1), (2.5, 97.5))
    return RatioEstimate(float(above.sum() / below.sum()), float(low), float(high))


def gaps(answer: RecordedAnswer) -> Iterator[float]:
    """Seconds between tokens as a reader sees them; tokens that come together have none between them."""
    for (before, at), count in zip(pairwise(answer.times), answer.counts[1:], strict=True):
        yield at - before
        yield from (0.0,) * (count - 1)


def survival(answers: Sequence[RecordedAnswer]) -> tuple[float, ...]:
    """The share of steps in which at least 1, 2, ... guesses stood, where servers tell."""
    stood = np.array([each for answer in answers for each in answer.stood or ()])
    steps = sum(answer.num_steps or 0 for answer in answers)
    if not stood.size or not stood.max():
        return ()
    return tuple(float((stood >= depth).sum() / steps) for depth in range(1, int(stood.max()) + 1))


def limit(answer: RecordedAnswer, costs: Costs | None) -> float | None:
    """The estimated speedup limit of the draft tokens that were accepted (theorem 3.8 for trees).

    It is the cost of as many non-speculative steps over the cost of the steps that were made, by the measured
    cost of a step with that number of rows. It assumes that drafting is free and that concurrent requests
    have drafts of equal length.
    """
    if not costs or answer.stood is None or answer.guessed is None or answer.num_steps is None:
        return None
    rows, seconds = zip(*sorted(costs.items()), strict=True)
    width = answer.place.width
    guessed = np.zeros(max(answer.num_steps, 1))
    guessed[: len(answer.guessed)] = answer.guessed
    made = np.interp(width * (1 + guessed), rows, seconds).sum()
    return float(answer.num_later * np.interp(width, rows, seconds) / made)


def _throughput(answers: Sequence[RecordedAnswer]) -> float:
    """Tokens per second of all that were asked at once."""
    groups: dict[tuple[int, int], list[RecordedAnswer]] = defaultdict(list)
    for each in answers:
        groups[each.place.run, each.place.group].append(each)
    seconds = sum(max(each.times[-1] for each in some) for some in groups.values())
    return sum(each.num_tokens for each in answers) / seconds if seconds else 0.0
