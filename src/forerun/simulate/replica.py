"""One replica: a simulated continuous-batching engine. A cost function gives its step times, draft tokens are
accepted at random, and the policy is that of the real engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import numpy as np

from forerun.simulate.draft_devices import Drafting
from forerun.simulate.policies import Policy
from forerun.simulate.traffic import SimulatedRequest
from forerun.types import FloatArray, IntArray

CostFunction = Callable[[FloatArray, float], FloatArray]
"""Seconds of forward passes, by rows and tokens of context."""

PREFILL_CHUNK: Final = 2048
"""Maximum number of prefill rows per step."""

MIN_PROBABILITY: Final = 1e-9
"""Acceptance probabilities are clipped to [MIN_PROBABILITY, 1 - MIN_PROBABILITY]."""

TIMING_NOISE: Final = 0.03
"""Standard deviation of the logarithm of a step time."""


@dataclass(slots=True)
class ActiveRequest:
    """A request in a replica: remaining prefill and output, acceptance probabilities, and time of its first
    token.
    """

    request: SimulatedRequest
    name: str
    prefill_left: int
    output_left: int
    context: int
    acceptance: float
    other_acceptance: float
    segment_tokens: tuple[float, float]
    first_token_at: float = 0.0

    def switch_segment(self) -> None:
        """Switch between repeating and other text."""
        self.acceptance, self.other_acceptance = self.other_acceptance, self.acceptance
        self.segment_tokens = self.segment_tokens[::-1]


@dataclass(slots=True)
class SimulatedStep:
    """One step: its duration, the number of decoding requests, and their emitted and draft tokens."""

    seconds: float = 0.0
    num_decoding: int = 0
    tokens: int = 0
    draft_tokens: int = 0


@dataclass(slots=True)
class ReplicaStats:
    """Totals of a replica. `tokens` includes first tokens, `decoded_tokens` does not. `decode_steps` counts
    each decoding request in each step. `ttft` and `itl` hold one value in seconds per finished request.
    """

    tokens: int = 0
    decoded_tokens: int = 0
    steps: int = 0
    decode_steps: int = 0
    draft_tokens: int = 0
    busy_seconds: float = 0.0
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)


class Replica:
    """Runs one step after the other: `begin_step` decides and returns the duration, `end_step` commits the
    tokens.
    """

    def __init__(
        self,
        curve: CostFunction,
        policy: Policy,
        random: np.random.Generator,
        *,
        max_batch: int,
        kv_capacity: float = np.inf,
        drafting: Drafting | None = None,
    ) -> None:
        self.curve = curve
        self.policy = policy
        self.random = random
        self.max_batch = max_batch
        self.kv_capacity = kv_capacity
        self.drafting = drafting
        self.waiting: deque[SimulatedRequest] = deque()
        self.active: list[ActiveRequest] = []
        self.stats = ReplicaStats()
        self._names = count()
        self._prefill: dict[int, int] = {}
        self._decoding: list[int] = []
        self._num_accepted: IntArray = np.zeros(0, dtype=np.int64)
        self.last_step = SimulatedStep()

    @property
    def num_unfinished(self) -> int:
        """Number of waiting and active requests."""
        return len(self.waiting) + len(self.active)

    def begin_step(self) -> float:
        """Admit requests that fit, choose draft lengths, and run a step; returns its duration in seconds."""
        self._admit()
        self._prefill, budget = {}, PREFILL_CHUNK
        for index, request in enumerate(self.active):
            if request.prefill_left and budget:
                self._prefill[index] = min(request.prefill_left, budget)
                budget -= self._prefill[index]
        self._decoding = [index for index, request in enumerate(self.active) if not request.prefill_left]
        rows = len(self._decoding) + sum(self._prefill.values())
        context = sum(request.context for request in self.active)
        names = [self.active[index].name for index in self._decoding]
        lengths = self.policy.lengths(names, rows, context)
        acceptances = np.array([self.active[index].acceptance for index in self._decoding])
        acceptances = np.clip(acceptances, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        run = np.log(self.random.random(len(acceptances))) / np.log(acceptances)
        self._num_accepted = np.minimum(run, lengths).astype(np.int64)
        num_rows = float(rows + lengths.sum())
        noise = np.exp(TIMING_NOISE * self.random.standard_normal())
        seconds = float(self.curve(np.array([num_rows]), context)[0] * noise)
        if self.drafting is not None:
            seconds += self.drafting.seconds(lengths, seconds)
        self.last_step = SimulatedStep(seconds, len(names), 0, int(lengths.sum()))
        self.stats.steps += 1
        self.stats.decode_steps += len(names)
        self.stats.draft_tokens += self.last_step.draft_tokens
        self.stats.busy_seconds += seconds
        return seconds

    def end_step(self, now: float) -> None:
        """Commit the tokens of the step and remove finished requests."""
        self.policy.observe(self._num_accepted, self.last_step.seconds)
        for index, num in self._prefill.items():
            request = self.active[index]
            request.prefill_left -= num
            request.context += num
            if not request.prefill_left:
                request.first_token_at = now
                request.output_left -= 1
                self.stats.tokens += 1
        for index, num_accepted in zip(self._decoding, self._num_accepted.tolist(), strict=True):
            request = self.active[index]
            num_emitted = min(num_accepted + 1, request.output_left)
            request.output_left -= num_emitted
            request.context += num_emitted
            self.stats.tokens += num_emitted
            self.stats.decoded_tokens += num_emitted
            self.last_step.tokens += num_emitted
            if (
                request.other_acceptance >= 0
                and self.random.random() < num_emitted / request.segment_tokens[0]
            ):
                request.switch_segment()
        self._retire(now)

    def _admit(self) -> None:
        reserved = sum(
            request.context + request.prefill_left + request.output_left for request in self.active
        )
        while self.waiting and len(self.active) < self.max_batch:
            arrived = self.waiting[0]
            reserved += arrived.prompt + arrived.output
            if reserved > self.kv_capacity and self.active:
                break
            self.waiting.popleft()
            name = str(next(self._names))
            self.policy.admit(name)
            self.active.append(
                ActiveRequest(
                    arrived,
                    name,
                    arrived.prompt,
                    arrived.output,
                    0,
                    arrived.acceptance,
                    arrived.other_acceptance,
                    arrived.segment_tokens,
                )
            )

    def _retire(self, now: float) -> None:
        finished = [
            request for request in self.active if not request.prefill_left and request.output_left <= 0
        ]
        if not finished:
            return
        self.active = [request for request in self.active if request.prefill_left or request.output_left > 0]
        for request in finished:
            self.policy.forget(request.name)
            self.stats.ttft.append(request.first_token_at - request.request.arrival)
            self.stats.itl.append((now - request.first_token_at) / max(request.request.output - 1, 1))
