"""Replay of recorded outputs through a drafter, without running a model.

At temperature 0 the target emits the recorded tokens again, so the recording determines which draft tokens
are accepted. The first output token is given, because prefill emits it. Outputs shorter than
`MIN_OUTPUT_TOKENS` are skipped. Steps are summed within a category.
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
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from forerun.drafters.tree_merge import verdict_for
from forerun.types import Draft, Drafter, FloatArray, LogitsDrafter, RequestView, Tokens

MIN_OUTPUT_TOKENS = 8
"""Outputs with fewer tokens are skipped."""

NUM_BINS = 10
"""Bins of the reliability diagram; draft tokens are sorted by estimated survival into bins of equal size."""


class Reliability:
    """Estimated survival of draft tokens against their acceptance."""

    def __init__(self) -> None:
        self._estimates: list[FloatArray] = []
        self._accepted: list[FloatArray] = []

    def add(self, estimates: FloatArray, accepted: FloatArray) -> None:
        """Add the estimates and outcomes of draft tokens."""
        self._estimates.append(estimates)
        self._accepted.append(accepted)

    @property
    def bins(self) -> list[tuple[float, float, int]]:
        """The mean estimate, the acceptance rate and the number of draft tokens of each bin."""
        if not self._estimates:
            return []
        estimates, accepted = np.concatenate(self._estimates), np.concatenate(self._accepted)
        parts = np.array_split(np.argsort(estimates, kind="stable"), NUM_BINS)
        return [
            (float(estimates[part].mean()), float(accepted[part].mean()), len(part))
            for part in parts
            if len(part)
        ]

    @property
    def calibration_error(self) -> float:
        """The expected calibration error: the mean gap between estimate and acceptance rate."""
        total = sum(num for *_, num in self.bins)
        return sum(num * abs(estimate - rate) for estimate, rate, num in self.bins) / max(total, 1)


@dataclass(slots=True)
class ReplayStats:
    """Totals over the steps of one category. `drafted` and `accepted` count steps by draft depth."""

    num_outputs: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    num_draft_tokens: int = 0
    draft_seconds: float = 0.0
    step_seconds: float = 0.0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that one target forward pass emits."""
        return self.num_tokens / self.num_steps

    @property
    def draft_tokens_per_step(self) -> float:
        """Draft tokens that one target forward pass verifies."""
        return self.num_draft_tokens / self.num_steps

    @property
    def acceptance_by_depth(self) -> list[float]:
        """The share of steps with a draft of at least this depth that accept a token there.

        Draft tokens at the last position of a recording, or beyond it, count as rejected.
        """
        return [accepted / drafted for accepted, drafted in zip(self.accepted, self.drafted, strict=True)]

    @property
    def microseconds_per_proposal(self) -> float:
        """Time of one call of the drafter, indexing of new tokens included."""
        return 1e6 * self.draft_seconds / self.num_steps

    def tokens_per_cost(self, price: float) -> float:
        """Tokens per unit of cost if each draft token costs this share of a step."""
        return self.num_tokens / (self.num_steps + price * self.num_draft_tokens)

    def add(self, draft: Draft, num_accepted: int) -> None:
        """Count one step."""
        self.num_steps += 1
        self.num_draft_tokens += len(draft)
        depth = draft.depth
        self.drafted += [0] * (depth - len(self.drafted))
        self.accepted += [0] * (depth - len(self.accepted))
        for level in range(depth):
            self.drafted[level] += 1
            self.accepted[level] += level < num_accepted


def linear_cost(price: float) -> StepCost:
    """Step costs in which each additional row costs this share of the first."""
    return StepCost((1, 1025), (1.0, 1.0 + 1024 * price), prior_variance=0.0)


class Replay:
    """Replays recordings through a drafter.

    With a `cost`, the engines' controller drops draft tokens that cost more than they gain; without one,
    every draft token is verified. Drafts do not extend beyond `max_tokens` of output. Where logits were
    recorded, a drafter that learns from them gets the rows of output tokens; those of rejected draft tokens
    are unknown. With `prompt_logits` it also gets the rows of prompts, which engines do not compute.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        nodes: int,
        cost: StepCost | None = None,
        max_tokens: int | None = None,
        prompt_logits: bool = False,
    ) -> None:
        self.drafter = drafter
        self.prompt_logits = prompt_logits
        self.nodes = nodes
        self.max_tokens = max_tokens
        self.draft_all = cost is None
        self.controller = Controller(cost or linear_cost(0.0))
        self.reliability = Reliability()

    def run(
        self, transcripts: Sequence[Transcript], progress: Callable[[int], None] = lambda _: None
    ) -> dict[str, ReplayStats]:
        """Replay transcripts in order and return totals by category."""
        stats: dict[str, ReplayStats] = {}
        self.reliability = Reliability()
        for number, transcript in enumerate(transcripts):
            if len(transcript.output) >= MIN_OUTPUT_TOKENS:
                totals = stats.setdefault(transcript.category, ReplayStats())
                totals.num_outputs += 1
                totals.num_tokens += len(transcript.output) - 1
                self._run_one(transcript, f"replay-{number}", totals)
            progress(number + 1)
        return stats

    def _run_one(self, transcript: Transcript, name: str, totals: ReplayStats) -> None:
        tokens, num_prompt = transcript.tokens, len(transcript.prompt)
        known = num_prompt + 1
        self.controller.admit(name, greedy=True)
        if transcript.top_tokens is not None:
            self.drafter.propose([RequestView(name, tokens[:num_prompt], num_prompt=num_prompt)], [1])
            self._learn_logits(name, transcript, 0 if self.prompt_logits else num_prompt - 1, num_prompt)
        while known < len(tokens):
            view = RequestView(name, tokens[:known], num_prompt=num_prompt)
            step = self.controller.begin_step([name], rows=1)
            draft = Draft.chain([])
            if self.draft_all or self.controller.should_draft(step)[0]:
                began = time.perf_counter()
                (draft,) = self.drafter.propose([view], [self._max_draft(known - num_prompt)])
                totals.draft_seconds += time.perf_counter() - began
            num_emitted = self._verify(step, name, draft, tokens[known:], totals)
            self._learn_logits(name, transcript, known - 1, known - 1 + num_emitted)
            known += num_emitted
        self.controller.forget(name)
        self.drafter.forget(name)

    def _learn_logits(self, name: str, transcript: Transcript, first: int, end: int) -> None:
        """Report the recorded logits at these positions, if there are any."""
        if transcript.top_tokens is not None and isinstance(self.drafter, LogitsDrafter):
            end = min(end, len(transcript.top_tokens))
            self.drafter.learn_logits(name, transcript.top_tokens.select(np.arange(first, end)))

    def _max_draft(self, num_output: int) -> int:
        """The longest draft that can still be emitted: each step emits one token beyond the accepted ones."""
        return self.nodes if self.max_tokens is None else min(self.nodes, self.max_tokens - num_output - 1)

    def _verify(self, step: Step, name: str, draft: Draft, ahead: Tokens, totals: ReplayStats) -> int:
        """Verify one draft and return the number of tokens that the step emits."""
        if len(draft):
            matches = (1, int(draft.tokens[0] == ahead[0]))
            self.controller.accounting.record_matches(step, ((0, 0), matches))
        candidates = Candidates.from_drafts([draft], partial(self.controller.kind, step))
        if self.draft_all or draft.survival is None:  # a draft without estimates is verified whole
            candidates.mandatory[:], step.is_baseline = True, False
        draft = draft.select(self.controller.choose(step, candidates))
        verdict = verdict_for(draft, ahead)
        accepted = np.zeros(len(draft), dtype=bool)
        accepted[list(verdict.accepted)] = True
        self.reliability.add(
            self.controller.estimate_survival(step, step.chosen), accepted.astype(np.float64)
        )
        seconds = self.controller.cost.at(step.num_rows)
        self.controller.record_step(step, accepted, seconds)
        totals.step_seconds += seconds
        self.drafter.learn(name, draft, verdict)
        totals.add(draft, len(verdict.accepted))
        return len(verdict.accepted) + 1


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean, which averages ratios over categories."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
