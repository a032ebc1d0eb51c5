"""Recorded outputs replayed through a drafter, without any model.

At temperature 0 the target says what it said before, so a recording tells which guesses would have stood.
The first token of an output is given, since prefill says it; outputs too short to speak of are left out;
steps are summed within a category.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from forerun.bench.transcripts import Transcript
from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from forerun.drafters.tree_merge import verdict_for
from forerun.types import Draft, Drafter, FloatArray, RequestView, Tokens

SHORTEST = 8
"""Outputs of fewer tokens are left out."""

NUM_BINS = 10
"""Guesses are sorted by their estimated survival and parted into so many bins of one size."""


class Reliability:
    """Estimated survivals beside what became of the guesses."""

    def __init__(self) -> None:
        self._estimates: list[FloatArray] = []
        self._stood: list[FloatArray] = []

    def add(self, estimates: FloatArray, stood: FloatArray) -> None:
        """Some guesses."""
        self._estimates.append(estimates)
        self._stood.append(stood)

    @property
    def bins(self) -> list[tuple[float, float, int]]:
        """Of each bin, the mean estimate, the share that stood, and how many guesses it has."""
        if not self._estimates:
            return []
        estimates, stood = np.concatenate(self._estimates), np.concatenate(self._stood)
        parts = np.array_split(np.argsort(estimates, kind="stable"), NUM_BINS)
        return [
            (float(estimates[part].mean()), float(stood[part].mean()), len(part))
            for part in parts
            if len(part)
        ]

    @property
    def error(self) -> float:
        """The expected calibration error: how far estimate and share are apart, over all guesses."""
        total = sum(num for *_, num in self.bins)
        return sum(num * abs(estimate - share) for estimate, share, num in self.bins) / max(total, 1)


@dataclass(slots=True)
class ReplayStats:
    """What happened in the steps of one category."""

    num_outputs: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    num_guesses: int = 0
    seconds: float = 0.0
    pass_seconds: float = 0.0
    reached: list[int] = field(default_factory=list)
    stood: list[int] = field(default_factory=list)

    @property
    def tokens_per_step(self) -> float:
        """How many tokens one run of the target commits."""
        return self.num_tokens / self.num_steps

    @property
    def guesses_per_step(self) -> float:
        """How many guesses one run of the target checks."""
        return self.num_guesses / self.num_steps

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Of the steps that guessed so far ahead, the share where a guess stood there.

        A recording ends: guesses for its last token and beyond it count as not standing.
        """
        return [stood / reached for stood, reached in zip(self.stood, self.reached, strict=True)]

    @property
    def microseconds_per_proposal(self) -> float:
        """What the drafter took for one guess, catching up with the text included."""
        return 1e6 * self.seconds / self.num_steps

    def tokens_per_cost(self, price: float) -> float:
        """Tokens per step where every guess makes a step dearer by this share of one."""
        return self.num_tokens / (self.num_steps + price * self.num_guesses)

    def add(self, draft: Draft, num_kept: int) -> None:
        """Count one step."""
        self.num_steps += 1
        self.num_guesses += len(draft)
        depth = draft.depth
        self.reached += [0] * (depth - len(self.reached))
        self.stood += [0] * (depth - len(self.stood))
        for level in range(depth):
            self.reached[level] += 1
            self.stood[level] += level < num_kept


def priced(price: float) -> StepCost:
    """Passes that cost this share of the first row more with every further one."""
    return StepCost((1, 1025), (1.0, 1.0 + 1024 * price), doubt=0.0)


class Replay:
    """Recordings through a drafter. Where it is told what passes cost, only guesses that pay are made, by the
    controller of the engines; otherwise all are. Beyond the most tokens that an answer could have, nobody
    guesses.
    """

    def __init__(
        self, drafter: Drafter, *, nodes: int, cost: StepCost | None = None, max_tokens: int | None = None
    ) -> None:
        self.drafter = drafter
        self.nodes = nodes
        self.max_tokens = max_tokens
        self.every = cost is None
        self.controller = Controller(cost or priced(0.0))
        self.reliability = Reliability()

    def run(
        self, transcripts: Sequence[Transcript], progress: Callable[[int], None] = lambda _: None
    ) -> dict[str, ReplayStats]:
        """Replay transcripts in order and return what happened, by category."""
        tallies: dict[str, ReplayStats] = {}
        self.reliability = Reliability()
        for number, transcript in enumerate(transcripts):
            if len(transcript.output) >= SHORTEST:
                tally = tallies.setdefault(transcript.category, ReplayStats())
                tally.num_outputs += 1
                tally.num_tokens += len(transcript.output) - 1
                self._run_one(transcript, f"replay-{number}", tally)
            progress(number + 1)
        return tallies

    def _run_one(self, transcript: Transcript, name: str, tally: ReplayStats) -> None:
        tokens, num_prompt = transcript.tokens, len(transcript.prompt)
        known = num_prompt + 1
        self.controller.admit(name, greedy=True)
        while known < len(tokens):
            view = RequestView(name, tokens[:known], num_prompt=num_prompt)
            began = time.perf_counter()
            (draft,) = self.drafter.propose([view], [self._room(known - num_prompt)])
            tally.seconds += time.perf_counter() - began
            known += self._step(name, draft, tokens[known:], tally)
        self.controller.forget(name)
        self.drafter.forget(name)

    def _room(self, said: int) -> int:
        """How many guesses could still be said, as each step says one token more than were guessed."""
        return self.nodes if self.max_tokens is None else min(self.nodes, self.max_tokens - said - 1)

    def _step(self, name: str, draft: Draft, ahead: Tokens, tally: ReplayStats) -> int:
        """One pass; returns how many tokens it says."""
        step = self.controller.begin_step([name], rows=1)
        guesses = Candidates.of([draft], partial(self.controller.kind, step))
        if self.every or draft.evidence is None:  # who says nothing of its guesses wants them all
            guesses.fixed[:], step.plain = True, False
        draft = draft.select(self.controller.choose(step, guesses))
        verdict = verdict_for(draft, ahead)
        stood = np.zeros(len(draft), dtype=bool)
        stood[list(verdict.accepted)] = True
        self.reliability.add(self.controller.estimate_survival(step, step.guesses), stood.astype(np.float64))
        seconds = self.controller.cost.at(step.num_rows)
        self.controller.record_step(step, stood, seconds)
        tally.pass_seconds += seconds
        self.drafter.learn(name, draft, verdict)
        tally.add(draft, len(verdict.accepted))
        return len(verdict.accepted) + 1


def geometric_mean(values: Iterable[float]) -> float:
    """The mean that a ratio per category calls for."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
