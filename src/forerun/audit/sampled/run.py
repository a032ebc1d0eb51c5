"""`forerun audit sampled`: whether the sampled tokens follow the target distribution.

The audit requests a batch of samples for every case in turn and tests it at once, until all planned samples
are in or the evidence suffices. Batch sizes are fixed in advance and samples are tested in the order of their
requests, not of their arrival: the tokens of a sample must not influence when it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from forerun.audit.report import INTERRUPTED
from forerun.audit.sample_journal import SampleBatch, SampleJournal
from forerun.audit.sampled.betting import log_joint_wealth
from forerun.audit.sampled.sweep import SweepCase
from forerun.errors import ForerunError, RequestRefused
from forerun.servers.completions import Completion, Token
from forerun.servers.endpoint import Endpoint, fault_notes
from forerun.types import FloatArray

_FIRST_BATCH: Final = 16
_BATCH: Final = 128
_EXTRA_TOKENS: Final = 1
"""Tokens requested beyond the tested ones: servers do not draft the last token of a completion."""

ProgressHandler = Callable[[list["CaseRun"], float], None]
"""Called after each batch with the runs and the joint evidence (log10)."""


class SequentialTest(Protocol):
    """A test of one case: `AgainstModel` or `AgainstServer`."""

    alternatives: tuple[str, ...]
    log_wealths: FloatArray
    epsilon: float
    num_tokens: int

    def update(self, samples: Sequence[tuple[Token, ...]], baseline: Sequence[tuple[Token, ...]]) -> None:
        """Test a batch of samples."""

    def log_wealth(self) -> float:
        """The log of the e-value."""

    def bound(self, error_rate: float) -> float:
        """The largest distance of the prefix distribution that is compatible with the samples."""

    def frequencies(self) -> list[tuple[float, float]]:
        """Expected and observed frequencies of prefixes."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Sample sizes and the stopping rule.

    A case is sampled until its distance is bounded by `target_bound`, if that takes at most `max_samples`.
    Other cases are sampled `num_samples` times: they are tested, but not bounded.

    The probability of a false difference and that of a wrong bound are each at most `error_rate`, for the
    whole audit: over all cases, bettors and bounds together.
    """

    target_bound: float = 0.05
    num_samples: int = 512
    max_samples: int = 20_000
    num_tokens: int = 3
    num_bounded_tokens: int = 2
    error_rate: float = 0.05
    stop_at_e_value: float = 1e7
    concurrency: int = 8
    choices: int | None = None


@dataclass(slots=True)
class CaseRun:
    """The state of one case during an audit."""

    case: SweepCase
    test: SequentialTest
    num_planned: int
    bounded: bool
    bound_schedule: dict[int, float]
    num_samples: int = 0
    num_sampled_tokens: int = 0
    num_accepted: int | None = None
    refused: str = ""
    bound: float | None = None
    trace: list[tuple[int, float]] = field(default_factory=list)

    def add_batch(self, batch: SampleBatch) -> None:
        """Test a batch, and compute the bound if it is due."""
        self.test.update(batch.candidate, batch.baseline)
        before, self.num_samples = self.num_samples, self.num_samples + len(batch.candidate)
        self.num_sampled_tokens += sum(map(len, batch.candidate))
        self.trace.append((self.num_samples, self.test.log_wealth() / math.log(10)))
        for size, share in self.bound_schedule.items():
            if before < size <= self.num_samples:
                self.bound = self.test.bound(share)

    @property
    def next_batch_size(self) -> int:
        """Samples to request next; 0 when all are in. A small first batch finds gross defects early."""
        if self.refused:
            return 0
        return min(_BATCH if self.num_samples else _FIRST_BATCH, self.num_planned - self.num_samples)

    @property
    def best_alternative(self) -> str:
        """The alternative of the wealthiest bettor."""
        return self.test.alternatives[int(np.argmax(self.test.log_wealths))]


class SampledAudit:
    """Runs the cases of an audit against the servers and records the samples."""

    def __init__(
        self,
        rows: list[CaseRun],
        candidate: Endpoint,
        baseline: Endpoint | None,
        plan: SamplingPlan,
        journal: SampleJournal,
    ) -> None:
        self.rows = rows
        self.plan = plan
        self.trace: list[tuple[int, float]] = []
        self._candidate = candidate
        self._baseline = baseline
        self._journal = journal

    def run(self, progress: ProgressHandler = lambda *_: None) -> str:
        """Sample until done or the evidence suffices. Returns why it stopped early, or an empty string."""
        with ThreadPoolExecutor(self.plan.concurrency) as pool:
            try:
                for batch in self._journal.recorded_batches():
                    self._add(batch)
                while not self._decided and any(row.next_batch_size for row in self.rows):
                    self._sample_all(pool, progress)
            except KeyboardInterrupt:
                for server in (self._candidate, self._baseline):
                    if server is not None:
                        server.close()  # unblocks the threads of the pool
                return INTERRUPTED
            except ForerunError as error:
                return str(error)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return ""

    def _sample_all(self, pool: ThreadPoolExecutor, progress: ProgressHandler) -> None:
        """Sample one batch per case, in turn; tested batches count even if the server fails later."""
        for number, row in enumerate(self.rows):
            if row.next_batch_size and not self._decided:
                candidate, baseline = (
                    self._request(pool, row, each) for each in (self._candidate, self._baseline)
                )
                try:
                    completions, baseline_completions = candidate(), baseline()
                except RequestRefused as error:
                    if row.num_samples:
                        raise
                    row.refused = str(error)
                    continue
                _add_accepted(row, completions)
                batch = SampleBatch(number, self._tested(completions), self._tested(baseline_completions))
                self._journal.append(batch)
                self._add(batch)
                progress(self.rows, self.evidence)

    def _request(
        self, pool: ThreadPoolExecutor, row: CaseRun, server: Endpoint | None
    ) -> Callable[[], list[Completion]]:
        """Request the next batch of a case. The returned function waits for it, in request order."""
        if server is None:
            return list
        per_request = self.plan.choices or server.dialect.choices_per_request
        starts = range(0, row.next_batch_size, per_request)
        sizes = [min(per_request, row.next_batch_size - start) for start in starts]
        futures = [
            pool.submit(
                server.complete,
                row.case.prompt,
                row.case.sampling,
                self.plan.num_tokens + _EXTRA_TOKENS,
                num_choices=size,
            )
            for size in sizes
        ]
        return lambda: [completion for future in futures for completion in future.result()]

    def _tested(self, completions: Sequence[Completion]) -> list[tuple[Token, ...]]:
        """The tokens of each completion that are tested."""
        return [each.tokens[: self.plan.num_tokens] for each in completions]

    def _add(self, batch: SampleBatch) -> None:
        self.rows[batch.case].add_batch(batch)
        logs = np.array([row.test.log_wealths for row in self.rows])
        num = sum(row.num_samples for row in self.rows)
        self.trace.append((num, log_joint_wealth(logs) / math.log(10)))

    @property
    def evidence(self) -> float:
        """The joint e-value (log10)."""
        return self.trace[-1][1] if self.trace else 0.0

    @property
    def _decided(self) -> bool:
        return self.evidence >= max(math.log10(self.plan.stop_at_e_value), -math.log10(self.plan.error_rate))

    @property
    def server_faults(self) -> list[str]:
        """One note per server with retried requests."""
        return list(fault_notes(self._candidate, self._baseline))


def _add_accepted(row: CaseRun, completions: Sequence[Completion]) -> None:
    """Count accepted draft tokens, if the server reports them."""
    reported = [each.num_accepted for each in completions if each.num_accepted is not None]
    if reported:
        row.num_accepted = (row.num_accepted or 0) + sum(reported)
