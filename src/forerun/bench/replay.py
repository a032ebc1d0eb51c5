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

from forerun.bench.transcripts import Transcript
from forerun.control.price import worth
from forerun.drafters.together import retrace
from forerun.types import Draft, Drafter, RequestView

SHORTEST = 8
"""Outputs of fewer tokens are left out."""


@dataclass(slots=True)
class Tally:
    """What happened in the steps of one category."""

    num_outputs: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    num_guesses: int = 0
    seconds: float = 0.0
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


def replay(
    drafter: Drafter,
    transcripts: Sequence[Transcript],
    *,
    nodes: int,
    price: float | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Tally]:
    """Replay all transcripts in order and return what happened, by category.

    With a price, only guesses that pay by their estimated survival are made.
    """
    tallies: dict[str, Tally] = {}
    for number, transcript in enumerate(transcripts):
        if len(transcript.output) >= SHORTEST:
            tally = tallies.setdefault(transcript.category, Tally())
            tally.num_outputs += 1
            tally.num_tokens += len(transcript.output) - 1
            _replay_one(drafter, transcript, f"replay-{number}", tally, nodes, price)
        progress(number + 1)
    return tallies


def _replay_one(
    drafter: Drafter, transcript: Transcript, name: str, tally: Tally, nodes: int, price: float | None
) -> None:
    tokens, num_prompt = transcript.tokens, len(transcript.prompt)
    known = num_prompt + 1
    while known < len(tokens):
        view = RequestView(name, tokens[:known], num_prompt=num_prompt)
        began = time.perf_counter()
        (draft,) = drafter.propose([view], [nodes])
        tally.seconds += time.perf_counter() - began
        draft = draft if price is None else worth(draft, price)
        verdict = retrace(draft, tokens[known:])
        drafter.learn(name, draft, verdict)
        tally.add(draft, len(verdict.accepted))
        known += len(verdict.accepted) + 1
    drafter.forget(name)


def geometric_mean(values: Iterable[float]) -> float:
    """The mean that a ratio per category calls for."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
