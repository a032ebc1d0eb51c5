"""`forerun audit sampled`: is the law of the next tokens the target's?

Rounds of samples for every case in turn, each judged as it comes, until all are in or the evidence is. The
sizes of rounds are fixed beforehand and answers are judged in the order they were asked for, whichever came
first: which tokens a sample has must not decide when it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from forerun.audit.report import INTERRUPTED
from forerun.audit.sample_journal import Batch, Journal
from forerun.audit.sampled.betting import joint_wealth
from forerun.audit.sampled.sweep import SweepCase
from forerun.errors import ForerunError, RequestRefused
from forerun.servers.endpoint import Completion, Endpoint, Token, fault_notes
from forerun.types import FloatArray

_FIRST: Final = 16
_ROUND: Final = 128
_MORE: Final = 1
"""Tokens asked for beyond those that are judged: a server has no use for a guess of the last one."""

Watch = Callable[[list["CaseRun"], float], None]
"""Told after each round: the rows, and the evidence of all together (base 10)."""


class SequentialTest(Protocol):
    """A test of one case: `AgainstModel` or `AgainstServer`."""

    alternatives: tuple[str, ...]
    logs: FloatArray
    epsilon: float
    num_tokens: int

    def take(self, answers: Sequence[tuple[Token, ...]], plain: Sequence[tuple[Token, ...]]) -> None:
        """Judge a batch."""

    def log_wealth(self) -> float:
        """The logarithm of the evidence."""

    def bound(self, error_rate: float) -> float:
        """The largest distance of the law of the first tokens still compatible with the samples."""

    def compared(self) -> list[tuple[float, float]]:
        """Expected and seen shares of beginnings."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How much to ask, and when to stop.

    A case is asked as often as it takes to bound its law by the target, if that is at most `most_samples`;
    `num_samples` times if not: then it is tested, but not bounded.

    Differences are found falsely, and bounds are wrong, at most at the error rate each. All of an audit
    counts as one: every case, every bettor and every bound has its share.
    """

    target: float = 0.05
    num_samples: int = 512
    most_samples: int = 20_000
    num_tokens: int = 3
    num_bounded: int = 2
    error_rate: float = 0.05
    stop_at: float = 1e7
    at_once: int = 8
    choices: int | None = None


@dataclass(slots=True)
class CaseRun:
    """One case as it goes."""

    case: SweepCase
    judge: SequentialTest
    planned: int
    bounded: bool
    looks: dict[int, float]
    num_samples: int = 0
    num_said: int = 0
    num_accepted: int | None = None
    refused: str = ""
    bound: float | None = None
    trace: list[tuple[int, float]] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        """Judge a batch, and bound the law if it is time."""
        self.judge.take(batch.tested, batch.plain)
        before, self.num_samples = self.num_samples, self.num_samples + len(batch.tested)
        self.num_said += sum(map(len, batch.tested))
        self.trace.append((self.num_samples, self.judge.log_wealth() / math.log(10)))
        for size, share in self.looks.items():
            if before < size <= self.num_samples:
                self.bound = self.judge.bound(share)

    @property
    def next_size(self) -> int:
        """How many to ask for now; 0 when all are in. Few at first, so that the worst is found at once."""
        if self.refused:
            return 0
        return min(_ROUND if self.num_samples else _FIRST, self.planned - self.num_samples)

    @property
    def suspicion(self) -> str:
        """What the richest bettor bets on."""
        return self.judge.alternatives[int(np.argmax(self.judge.logs))]


class SampledAudit:
    """One audit: rows, the servers they are asked of, and where samples are kept."""

    def __init__(
        self,
        rows: list[CaseRun],
        candidate: Endpoint,
        baseline: Endpoint | None,
        plan: SamplingPlan,
        journal: Journal,
    ) -> None:
        self.rows = rows
        self.plan = plan
        self.trace: list[tuple[int, float]] = []
        self._candidate = candidate
        self._baseline = baseline
        self._journal = journal

    def run(self, watch: Watch = lambda *_: None) -> str:
        """Ask until all is in or the evidence is. What kept it from its end, if anything did."""
        with ThreadPoolExecutor(self.plan.at_once) as pool:
            try:
                for batch in self._journal.earlier():
                    self._take(batch)
                while not self._settled and any(row.next_size for row in self.rows):
                    self._round(pool, watch)
            except KeyboardInterrupt:
                for server in (self._candidate, self._baseline):
                    if server is not None:
                        server.close()  # the threads of the pool do not wait for answers that are not used
                return INTERRUPTED
            except ForerunError as error:
                return str(error)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return ""

    def _round(self, pool: ThreadPoolExecutor, watch: Watch) -> None:
        """Some samples of every case, one case after another: what was judged stands if the server falls."""
        for number, row in enumerate(self.rows):
            if row.next_size and not self._settled:
                tested, plain = (self._ask(pool, row, each) for each in (self._candidate, self._baseline))
                try:
                    answers, others = tested(), plain()
                except RequestRefused as error:
                    if row.num_samples:
                        raise
                    row.refused = str(error)
                    continue
                _add_accepted(row, answers)
                batch = Batch(number, self._first(answers), self._first(others))
                self._journal.keep(batch)
                self._take(batch)
                watch(self.rows, self.evidence)

    def _ask(
        self, pool: ThreadPoolExecutor, row: CaseRun, server: Endpoint | None
    ) -> Callable[[], list[Completion]]:
        """Ask for one row's share of a round; the answers, in the order of asking, when called."""
        if server is None:
            return list
        most = self.plan.choices or server.dialect.choices
        sizes = [min(most, row.next_size - start) for start in range(0, row.next_size, most)]
        futures = [
            pool.submit(
                server.complete,
                row.case.prompt,
                row.case.sampling,
                self.plan.num_tokens + _MORE,
                num_choices=size,
            )
            for size in sizes
        ]
        return lambda: [answer for future in futures for answer in future.result()]

    def _first(self, answers: Sequence[Completion]) -> list[tuple[Token, ...]]:
        """The tokens that are judged."""
        return [each.tokens[: self.plan.num_tokens] for each in answers]

    def _take(self, batch: Batch) -> None:
        self.rows[batch.case].take(batch)
        logs = np.array([row.judge.logs for row in self.rows])
        num = sum(row.num_samples for row in self.rows)
        self.trace.append((num, joint_wealth(logs) / math.log(10)))

    @property
    def evidence(self) -> float:
        """The logarithm (base 10) of what all bettors own now."""
        return self.trace[-1][1] if self.trace else 0.0

    @property
    def _settled(self) -> bool:
        return self.evidence >= max(math.log10(self.plan.stop_at), -math.log10(self.plan.error_rate))

    @property
    def told_faults(self) -> list[str]:
        """The faults of either server, in a sentence each."""
        return list(fault_notes(self._candidate, self._baseline))


def _add_accepted(row: CaseRun, answers: Sequence[Completion]) -> None:
    """Count the guesses that stood, where the server tells."""
    told = [each.num_accepted for each in answers if each.num_accepted is not None]
    if told:
        row.num_accepted = (row.num_accepted or 0) + sum(told)
