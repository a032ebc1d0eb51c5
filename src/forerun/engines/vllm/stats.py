"""What speculation did, counted: by drafter, and by how far ahead a guess was made."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby, product
from typing import Final

import numpy as np

from forerun.control.controller import Goodput
from forerun.control.step_cost import StepCost, read_one
from forerun.engines.vllm.shared_counters import Series, Values, share

logger = logging.getLogger("vllm.forerun")  # below vLLM's own logger, so that its settings hold here too

STEPS: Final = "forerun:request_steps"
PLAIN: Final = "forerun:plain_request_steps"
TOKENS: Final = "forerun:tokens"
KNOWN: Final = "forerun:known_requests"
PROPOSED: Final = "forerun:proposed_tokens"
ACCEPTED: Final = "forerun:accepted_tokens"
SECONDS: Final = "forerun:draft_seconds"
ERRORS: Final = "forerun:drafter_errors"
CHOSEN: Final = "forerun:chosen_tokens"
PREDICTED: Final = "forerun:predicted_goodput"
MEASURED: Final = "forerun:measured_goodput"
WITHOUT: Final = "forerun:plain_goodput"
COSTS: Final = "forerun:pass_seconds"

ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 192, 256)
"""Of passes whose cost is told: the usual ones, and those that begin another tile."""

GAUGES: Final = frozenset({KNOWN, CHOSEN, PREDICTED, MEASURED, WITHOUT, COSTS})
"""What goes up and down; all else only grows."""

EMA_WEIGHT: Final = 0.05
"""What a step counts for in a gauge."""

BY_DRAFTER: Final = (SECONDS, ERRORS, CHOSEN, PREDICTED, MEASURED, WITHOUT)

HELP: Final = {
    STEPS: "Steps of decoding, counted once for every request that took part.",
    PLAIN: "Those of them that had no guess to check.",
    TOKENS: "Tokens that the model said in them, before stops cut any.",
    KNOWN: "Requests that somebody remembers something of, now.",
    PROPOSED: "Guesses that the model checked, by drafter and by depth.",
    ACCEPTED: "Guesses that stood, by drafter and by depth.",
    SECONDS: "Time spent guessing, by drafter.",
    ERRORS: "Errors in guessing, by drafter; each costs guesses, never an answer.",
    CHOSEN: "Guesses made for a request in a step, of late, by drafter.",
    PREDICTED: "Tokens per second expected of steps with guesses of this drafter, of late.",
    MEASURED: "Tokens per second that these steps said.",
    WITHOUT: "Tokens per second that they would have said without guesses.",
    COSTS: "Seconds that a pass of the model is believed to take, by its rows and whether tokens are drawn.",
}


class SpecDecodeStats:
    """Counts for some drafters that guess at most so many tokens ahead."""

    def __init__(self, drafters: Sequence[str], most_guesses: int) -> None:
        self.drafters = tuple(drafters)
        depths = [str(depth) for depth in range(1, most_guesses + 1)]
        self.series: list[Series] = [
            *((name, ()) for name in (STEPS, PLAIN, TOKENS, KNOWN)),
            *((COSTS, _cost_labels(rows, drawn)) for rows, drawn in product(ROWS, (False, True))),
            *((name, (("drafter", who),)) for name, who in product(BY_DRAFTER, self.drafters)),
            *(
                (name, (("drafter", who), ("depth", depth)))
                for name, who, depth in product((PROPOSED, ACCEPTED), self.drafters, depths)
            ),
        ]
        self.values: Values = np.zeros(len(self.series))
        self._places = {each: place for place, each in enumerate(self.series)}
        self._steps, self._plain, self._tokens = (self._places[name, ()] for name in (STEPS, PLAIN, TOKENS))
        self._rows = {  # where the counts by depth begin
            (name, who): self._places[name, (("drafter", who), ("depth", "1"))]
            for name, who in product((PROPOSED, ACCEPTED), self.drafters if most_guesses else ())
        }

    def publish(self, instance: str, engine: int) -> None:
        """From now on count where others can read it, as an engine of some vLLM; if that is possible."""
        before = self.values
        try:
            self.values = share(instance, engine, self.series)
        except OSError as error:
            logger.warning("forerun's counts are not published: %s", error)
        else:
            self.values += before

    def step(self, sources: Sequence[str], num_said: int) -> None:
        """A request checked guesses of these drafters, and said so many tokens."""
        self.values[self._steps] += 1
        self.values[self._tokens] += num_said
        if not sources:
            self.values[self._plain] += 1
            return
        first = 0
        for who, group in groupby(sources):
            last = first + len(list(group))
            kept = max(first, min(last, num_said - 1))
            proposed, accepted = self._rows[PROPOSED, who], self._rows[ACCEPTED, who]
            self.values[proposed + first : proposed + last] += 1
            self.values[accepted + first : accepted + kept] += 1
            first = last

    def add_seconds(self, drafter: str, seconds: float) -> None:
        """A drafter took so long."""
        self._add(SECONDS, seconds, drafter)

    def add_error(self, drafter: str) -> None:
        """A drafter failed."""
        self._add(ERRORS, 1, drafter)

    def paced(self, drafter: str, chosen: float, rates: Goodput | None) -> None:
        """In a step a drafter made so many guesses for a request; if any, it went at these rates."""
        values = {CHOSEN: chosen}
        if rates is not None:
            values |= {PREDICTED: rates.predicted, MEASURED: rates.measured, WITHOUT: rates.baseline}
        for name, value in values.items():
            place = self._places[name, (("drafter", drafter),)]
            before = self.values[place]
            self.values[place] = before + (EMA_WEIGHT if before else 1.0) * (value - before)

    def known(self, num_requests: int) -> None:
        """So many requests are remembered now."""
        self.values[self._places[KNOWN, ()]] = num_requests

    def costs(self, cost: StepCost) -> None:
        """Passes are believed to take so long, by their rows; of those that draw, once there were any."""
        for drawn in (False, True):
            curve = cost.curve(sampled=drawn)
            if curve is not None:
                for rows in ROWS:
                    seconds = read_one(cost.rows, curve, float(rows))
                    self.values[self._places[COSTS, _cost_labels(rows, drawn)]] = seconds

    def total(self, name: str, drafter: str | None = None) -> float:
        """A count, summed over depths."""
        return float(
            sum(
                value
                for (each, labels), value in zip(self.series, self.values.tolist(), strict=True)
                if each == name and (drafter is None or ("drafter", drafter) in labels)
            )
        )

    def _add(self, name: str, amount: float, drafter: str) -> None:
        self.values[self._places[name, (("drafter", drafter),)]] += amount


def _cost_labels(rows: int, drawn: bool) -> tuple[tuple[str, str], ...]:
    return ("rows", str(rows)), ("drawn", "yes" if drawn else "no")


class PeriodicStatsLogger:
    """A line a minute about what a tally counted since the last one."""

    def __init__(self, tally: SpecDecodeStats, now: float, every: float = 60.0) -> None:
        self.tally = tally
        self.every = every
        self._began = now
        self._before = tally.values.copy()

    def line(self, now: float) -> str | None:
        """What to say, if it is time and anything happened."""
        if now - self._began < self.every:
            return None
        since = SpecDecodeStats(self.tally.drafters, 0)
        since.series, since.values = self.tally.series, self.tally.values - self._before
        self._began, self._before = now, self.tally.values.copy()
        return summary(since) if since.total(STEPS) else None


def summary(tally: SpecDecodeStats) -> str:
    """One line: tokens per step, acceptance of each drafter that guessed, how many steps were plain."""
    steps = tally.total(STEPS)
    parts = [
        f"{tally.total(TOKENS) / steps:.2f} tokens per step",
        f"{tally.total(PLAIN) / steps:.0%} of steps plain",
    ]
    for who in tally.drafters:
        proposed, accepted = tally.total(PROPOSED, who), tally.total(ACCEPTED, who)
        if proposed:
            parts.append(f"{who}: {accepted:.0f} of {proposed:.0f} guesses stood ({accepted / proposed:.0%})")
        if errors := tally.total(ERRORS, who):
            parts.append(f"{who}: {errors:.0f} errors")
    return "; ".join(parts)
