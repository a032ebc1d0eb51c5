"""Contestants take turns, group by group, so that the moods of a machine are shared by all.

Where several are asked at a time a group is longer: whoever is answered makes room for the next, as on a
server. Of a few that start together and end with the slowest nobody could tell what a server gets done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from math import ceil
from typing import Final

import numpy as np

from forerun.bench.record import DIGITS, TAKEN, CaseKey, RecordedAnswer, RecordWriter
from forerun.bench.steal_time import CpuTicks
from forerun.bench.suites import Question
from forerun.errors import ForerunError
from forerun.servers.concurrency import map_concurrent
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams

WARM: Final = 2
"""Questions that everybody answers before it counts."""

REST: Final = 1.2
"""Seconds between two contestants: idle workers of a vLLM look for work busily for one."""

ROUNDS: Final = 4
"""A group has so many times as many questions as are asked at a time, where that is more than one."""

TRIES: Final = 4
"""So often a group is asked while others take too much of the machine."""

PATIENCE: Final = 2
"""So many groups in a row without an answer, and a contestant is not asked any more."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is asked: questions, at these temperatures, so many at a time, for at most so many tokens."""

    questions: Sequence[Question]
    temperatures: Sequence[float]
    widths: Sequence[int]
    num_tokens: int
    seed: int = 0

    def groups(self, run: int) -> Iterator[list[tuple[CaseKey, Question]]]:
        """Questions that one is asked before it is the next one's turn; the last group is filled up from the
        beginning, so that there are always as many at a time as there should be but at the end.
        """
        for temperature in self.temperatures:
            for width in self.widths:
                num, size = ceil(len(self.questions) / width) * width, width if width == 1 else ROUNDS * width
                every = list(islice(cycle(self.questions), num))
                for group, first in enumerate(range(0, num, size)):
                    yield [
                        (CaseKey(run, temperature, width, group, number, each.id, each.category), each)
                        for number, each in enumerate(every[first : first + size], first)
                    ]

    def __len__(self) -> int:
        """How many groups there are."""
        return sum(1 for _ in self.groups(0))

    def is_over(self, names: Sequence[str], writer: RecordWriter) -> bool:
        """Whether everybody has answered everything."""
        done = writer.done()
        return all(
            (place, who) in done for group in self.groups(writer.run) for place, _ in group for who in names
        )

    def sampling(self, place: CaseKey) -> SamplingParams:
        """How a question is to be answered: with a seed of its own, the same for all who are asked."""
        seed = self.seed + place.number % len(self.questions)
        return SamplingParams(temperature=place.temperature, seed=seed if place.temperature else None)


def run_bench(
    race: BenchPlan,
    lanes: dict[str, Endpoint],
    writer: RecordWriter,
    watch: Callable[[int, str], None],
    *,
    here: bool = False,
) -> None:
    """Ask everybody everything that is not yet answered, until they have or give up. The order is drawn for
    every group: nobody always comes after the same one. Those that run here, on this machine, have it for
    themselves as far as one can see to it.
    """
    done = writer.done()
    plain = {who: facts["plain"] for who, facts in writer.record.runs[-1]["contestants"].items()}
    order = [who for who in lanes if (writer.run, who) not in writer.record.gave_up]
    silent = dict.fromkeys(order, 0)
    for number, group in enumerate(race.groups(writer.run)):
        lacking = {who for who in order if any((place, who) not in done for place, _ in group)}
        held_to = {plain[who] for who in lacking}  # all that are compared are asked in turn, again if need be
        wanted = [who for who in order if plain[who] in held_to]
        for who in np.random.default_rng(number).permutation(wanted).tolist():
            watch(number, who)
            ask = partial(run_group, race, group, who, lanes[who])
            answers = undisturbed(ask) if here else ask()
            for answer in answers:
                writer.keep(answer)
            errors = [answer.error for answer in answers if answer.error]
            silent[who] = silent[who] + 1 if len(errors) == len(answers) else 0
            if silent[who] >= PATIENCE:
                writer.add({"run": writer.run, "who": who, "gave_up": errors[-1]})
                order.remove(who)
        watch(number + 1, "")


def undisturbed(ask: Callable[[], list[RecordedAnswer]], rest: float = REST) -> list[RecordedAnswer]:
    """Answers for which the machine was ours, asked for after a rest, and again while others took of it; at
    last those for which they took least. Errors are never asked away.
    """
    tries: list[list[RecordedAnswer]] = []
    while len(tries) < TRIES:
        time.sleep(rest)
        tries.append(ask())
        if any(answer.error for answer in tries[-1]):
            return tries[-1]
        if tries[-1][0].stolen <= TAKEN:
            break
    return min(tries, key=lambda answers: answers[0].stolen)


def run_group(
    race: BenchPlan, group: Sequence[tuple[CaseKey, Question]], who: str, lane: Endpoint
) -> list[RecordedAnswer]:
    """Ask one contestant for all of a group, as many at a time as there should be."""
    width = group[0][0].width
    before, began = CpuTicks.now(), time.perf_counter()

    def ask(one: tuple[CaseKey, Question]) -> RecordedAnswer:
        place, question = one
        try:
            streamed = lane.chat(question.text, race.sampling(place), race.num_tokens)
        except ForerunError as error:
            return RecordedAnswer(place, who, error=str(error))
        return RecordedAnswer.of(place, who, streamed, began)

    answers = list(map_concurrent(ask, group, width))
    stolen = round(CpuTicks.now().share_since(before), DIGITS)
    return [replace(answer, stolen=stolen) for answer in answers]


def warm_up(
    race: BenchPlan, lanes: dict[str, Endpoint], writer: RecordWriter, watch: Callable[[str], None]
) -> None:
    """Let everybody answer something that does not count; who cannot gives up."""
    for who, lane in lanes.items():
        watch(who)
        try:
            for question in race.questions[:WARM]:
                lane.chat(question.text, SamplingParams(temperature=0.0), race.num_tokens)
        except ForerunError as error:
            writer.add({"run": writer.run, "who": who, "gave_up": str(error)})
