"""The benchmark loop: systems alternate group by group, so that drift of the machine affects all alike.

With a concurrency above 1 a group has several times as many requests, and each completed request is replaced
by the next, as on a busy server. A batch that starts together and ends with its slowest request would not
measure throughput.
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

from forerun.bench.record_writer import RecordWriter
from forerun.bench.recorded_answer import MAX_STEAL_SHARE, TIME_DIGITS, CaseKey, RecordedAnswer
from forerun.bench.suites import Question
from forerun.control.machine_load import CpuTicks
from forerun.errors import ForerunError
from forerun.servers.concurrency import map_concurrent
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams

NUM_WARMUP: Final = 2
"""Uncounted requests to each system before the first group."""

IDLE_SECONDS: Final = 1.2
"""Pause between two systems: idle vLLM workers busy-wait for one second."""

GROUP_FACTOR: Final = 4
"""Requests of a group per unit of concurrency, where the concurrency is above 1."""

MAX_ATTEMPTS: Final = 4
"""Attempts at a group while steal time is too high."""

MAX_FAILED_GROUPS: Final = 2
"""Consecutive groups without any answer after which a system is excluded."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """All requests of a run: every question at every temperature and concurrency, with an output limit."""

    questions: Sequence[Question]
    temperatures: Sequence[float]
    concurrencies: Sequence[int]
    num_tokens: int
    seed: int = 0

    def groups(self, run: int) -> Iterator[list[tuple[CaseKey, Question]]]:
        """The cases that one system answers before the next one's turn.

        Questions repeat from the first until their number is a multiple of the concurrency, which therefore
        drops only at the end of a group.
        """
        for temperature in self.temperatures:
            for concurrency in self.concurrencies:
                num = ceil(len(self.questions) / concurrency) * concurrency
                size = concurrency if concurrency == 1 else GROUP_FACTOR * concurrency
                every = list(islice(cycle(self.questions), num))
                for group, first in enumerate(range(0, num, size)):
                    yield [
                        (CaseKey(run, temperature, concurrency, group, number, each.id, each.category), each)
                        for number, each in enumerate(every[first : first + size], first)
                    ]

    def __len__(self) -> int:
        """The number of groups."""
        return sum(1 for _ in self.groups(0))

    def is_complete(self, names: Sequence[str], writer: RecordWriter) -> bool:
        """Whether every system has answered every case."""
        done = writer.completed()
        return all(
            (case, name) in done for group in self.groups(writer.run) for case, _ in group for name in names
        )

    def sampling(self, case: CaseKey) -> SamplingParams:
        """Sampling parameters of a case. Each question has its own seed, the same for all systems."""
        seed = self.seed + case.number % len(self.questions)
        return SamplingParams(temperature=case.temperature, seed=seed if case.temperature else None)


def run_bench(
    plan: BenchPlan,
    endpoints: dict[str, Endpoint],
    writer: RecordWriter,
    on_progress: Callable[[int, str], None],
    *,
    is_local: bool = False,
) -> None:
    """Request every missing answer of every system that is not excluded.

    The order of systems is random in each group. A system's missing answer is requested together with those
    of all systems that share its baseline. With `is_local`, groups disturbed by steal time are repeated.
    """
    done = writer.completed()
    baselines = {name: facts["baseline"] for name, facts in writer.record.runs[-1]["systems"].items()}
    active = [name for name in endpoints if (writer.run, name) not in writer.record.excluded]
    num_failed = dict.fromkeys(active, 0)
    for number, group in enumerate(plan.groups(writer.run)):
        incomplete = {name for name in active if any((case, name) not in done for case, _ in group)}
        compared_with = {baselines[name] for name in incomplete}
        pending = [name for name in active if baselines[name] in compared_with]
        for name in np.random.default_rng(number).permutation(pending).tolist():
            on_progress(number, name)
            send = partial(run_group, plan, group, name, endpoints[name])
            answers = run_undisturbed(send) if is_local else send()
            for answer in answers:
                writer.add(answer)
            errors = [answer.error for answer in answers if answer.error]
            num_failed[name] = num_failed[name] + 1 if len(errors) == len(answers) else 0
            if num_failed[name] >= MAX_FAILED_GROUPS:
                writer.exclude(name, errors[-1])
                active.remove(name)
        on_progress(number + 1, "")


def run_undisturbed(
    send: Callable[[], list[RecordedAnswer]], idle_seconds: float = IDLE_SECONDS
) -> list[RecordedAnswer]:
    """Send a group after a pause, again while steal time is too high, and return the attempt with the least.

    An attempt with an error is returned at once: errors are never retried away.
    """
    attempts: list[list[RecordedAnswer]] = []
    while len(attempts) < MAX_ATTEMPTS:
        time.sleep(idle_seconds)
        attempts.append(send())
        if any(answer.error for answer in attempts[-1]):
            return attempts[-1]
        if attempts[-1][0].steal_share <= MAX_STEAL_SHARE:
            break
    return min(attempts, key=lambda answers: answers[0].steal_share)


def run_group(
    plan: BenchPlan, group: Sequence[tuple[CaseKey, Question]], system: str, endpoint: Endpoint
) -> list[RecordedAnswer]:
    """Send all requests of a group to one system at the group's concurrency."""
    concurrency = group[0][0].concurrency
    before, start = CpuTicks.now(), time.perf_counter()

    def send(one: tuple[CaseKey, Question]) -> RecordedAnswer:
        case, question = one
        try:
            streamed = endpoint.chat(question.text, plan.sampling(case), plan.num_tokens)
        except ForerunError as error:
            return RecordedAnswer(case, system, error=str(error))
        return RecordedAnswer.from_stream(case, system, streamed, start)

    answers = list(map_concurrent(send, group, concurrency))
    steal_share = round(CpuTicks.now().steal_share_since(before), TIME_DIGITS)
    return [replace(answer, steal_share=steal_share) for answer in answers]


def warm_up(
    plan: BenchPlan,
    endpoints: dict[str, Endpoint],
    writer: RecordWriter,
    on_progress: Callable[[str], None],
) -> None:
    """Send uncounted requests to every system; a system that fails is excluded."""
    for name, endpoint in endpoints.items():
        on_progress(name)
        try:
            for question in plan.questions[:NUM_WARMUP]:
                endpoint.chat(question.text, SamplingParams(temperature=0.0), plan.num_tokens)
        except ForerunError as error:
            writer.exclude(name, str(error))
