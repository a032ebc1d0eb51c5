"""Who decides how far to guess: one controller for an engine, asked once a step.

    step = controller.open(names, rows)          # who is in the pass, and its rows without any guess
    budgets = controller.allot(step, who, rooms)  # how far somebody is to draw: nothing is drawn yet
    kept = controller.choose(step, guesses)       # which guesses are made
    controller.close(step, stood, seconds)        # what became of them, and how long it took

Guesses that were drawn from a q are never dropped for what they are. How many there are was fixed by `allot`,
which has not seen them; only a step that was to be plain before anybody drew leaves them all out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.control.budget import how_far, how_many, likeliest
from forerun.control.cost import StepCost, read, read_one
from forerun.control.guesses import ASSUMED, Guesses
from forerun.control.honesty import Account, Purse
from forerun.control.survival import Survival
from forerun.types import BoolArray, FloatArray, IntArray

PLAIN_AFTER: Final = 8
PLAIN_EVERY: Final = 100
"""After so many steps with guesses a plain one is measured, if it can be paid for: where guesses gain little
it costs little. After so many, everything is saved for it."""

FIRST_PASS: Final = 0.1
"""What a pass of a drafter's own model costs before it was measured, as a share of a step of the target."""

BELIEVED: Final = 0.5
"""A step that took longer or shorter by more than this share of what was expected was disturbed."""

LATELY: Final = 0.1
"""What a step counts for in what was so of late."""


Worth = tuple[tuple[FloatArray, FloatArray], float]
"""The curve of a step's passes, and the tokens that a second is worth."""


@dataclass(slots=True)
class Step:
    """A step that was opened: who is in it, what it is without guesses, and what was decided."""

    places: IntArray
    greedy: BoolArray
    adaptive: BoolArray
    rows: int
    context: int
    plain: bool
    guesses: Guesses
    tokens: float
    draft_seconds: float = 0.0

    @property
    def sampled(self) -> bool:
        """Whether anybody's tokens are drawn."""
        return not self.greedy.all()

    @property
    def num_rows(self) -> int:
        """The rows of the pass, guesses included."""
        return self.rows + len(self.guesses)


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of a step: as predicted, as measured, and as plain decoding would have said them."""

    predicted: float
    measured: float
    plain: float


class Gain:
    """How much faster than plain decoding it went of late: tokens over time, both as shares of plain ones."""

    __slots__ = ("_num", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._num, self._tokens, self._seconds = 1, 1.0, 1.0

    def add(self, tokens: float, seconds: float) -> None:
        """A step said so many times as many tokens as plain decoding in so many times its time."""
        self._num += 1
        weight = max(LATELY, 1 / self._num)  # at first all steps count the same
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def value(self) -> float:
        """At least 1: plain decoding is a choice."""
        return max(self._tokens / self._seconds, 1.0)


class Controller:
    """Decides for one engine, from what its steps cost and from what became of guesses."""

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self.survival = Survival()
        self.purse = Purse()
        self.accounts = {greedy: Account() for greedy in (True, False)}
        self._gain = Gain()
        self._classes: dict[str, tuple[bool, bool]] = {}
        self._pass_share: dict[str, float] = {}
        self._guessed = np.zeros(0, dtype=np.int64)
        self._num_steps = self._since_plain = 0
        self._plain_next = False

    def admit(self, name: str, *, greedy: bool, adaptive: bool = True) -> None:
        """A new request. One that is not `adaptive` gets every guess that there is."""
        place = self.survival.admit(name)
        if place >= len(self._guessed):
            self._guessed = np.resize(self._guessed, 2 * place + 8)
        self._guessed[place] = self._num_steps
        self._classes[name] = (greedy, adaptive)

    def forget(self, name: str) -> None:
        """A request is over."""
        self.survival.forget(name)
        self._classes.pop(name, None)

    def open(self, names: Sequence[str], rows: int, context: int = 0) -> Step:
        """A step begins: whose next tokens it decides, its rows without guesses, its tokens of context."""
        classes = np.array([self._classes[name] for name in names], dtype=bool).reshape(-1, 2)
        return Step(
            np.array([self.survival.place(name) for name in names], dtype=np.int64),
            classes[:, 0],
            classes[:, 1],
            rows,
            context,
            self._plain_next,
            Guesses.none(),
            float(len(names)),
        )

    def kind(self, step: Step, source: str, owner: int) -> int:
        """The number of the kind of guess that somebody makes for one of the requests of a step."""
        return self.survival.kind(source, greedy=bool(step.greedy[owner]))

    def allot(self, step: Step, source: str, rooms: IntArray) -> IntArray:
        """How many guesses somebody who takes time for each depth is to make for everybody in a step."""
        unasked = np.where(step.adaptive, 0, rooms)
        asking = np.where(step.adaptive, rooms, 0)
        if step.plain or not asking.any():
            return unasked
        down = self._stands_down(step.greedy)
        rooms = np.where(down, 0, asking)
        kinds = np.array([self.survival.kind(source, greedy=greedy) for greedy in (False, True)])
        root = np.full(len(rooms), -1)
        chances = self.survival.estimate(
            np.full(len(rooms), ASSUMED), root, kinds[step.greedy.astype(np.int64)], step.places
        )
        curve, rate = self._worth(step)
        probe = float(step.rows + np.count_nonzero(asking))
        now, wider = read(*curve, np.array([step.rows, probe], dtype=np.float64)).tolist()
        a_pass = self._pass_share.get(source, FIRST_PASS) * now
        budgets = how_far(chances, rooms, step.rows, curve, rate, a_pass)
        if budgets.any():
            return unasked + budgets
        loss = a_pass + wider - now - float(chances[rooms > 0].sum()) / rate
        return unasked + (np.minimum(asking, 1) if self.purse.pay(loss) else 0)

    def went(self, step: Step, source: str, lengths: IntArray, stood: IntArray) -> None:
        """Of so many guesses in a row that somebody made for each request, so many stood: `allot` learns."""
        depth = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        kinds = [self.kind(step, source, owner) for owner in range(len(lengths))]
        self.survival.learn(
            np.power(ASSUMED, depth + 1.0),
            np.where(depth == 0, -1, np.arange(len(depth)) - 1),
            np.repeat(np.array(kinds, dtype=np.int64), lengths),
            step.places[owners],
            depth < stood[owners],
        )

    def drafted(self, step: Step, source: str, num_passes: int, seconds: float) -> None:
        """Somebody took so long for so many depths."""
        step.draft_seconds += seconds
        if num_passes:
            share = seconds / num_passes / self.cost.at(step.rows, step.context, sampled=step.sampled)
            known = self._pass_share.get(source, FIRST_PASS)
            self._pass_share[source] = known + LATELY * (min(share, 2 * known) - known)

    def choose(self, step: Step, guesses: Guesses) -> BoolArray:
        """Which of the guesses are made: as many as tokens per second grow with, and a few to find out."""
        unasked = ~step.adaptive[guesses.owners]
        kept = guesses.with_ancestors(unasked | (guesses.fixed & (not step.plain)))
        if len(guesses):
            survivals = self.estimate(step, guesses)
            if not (step.plain or unasked.all()):
                worth = self._worth(step)
                self._take(step, guesses, survivals, kept, worth)
                self._probe(step, guesses, survivals, kept, worth)
            step.tokens += float(survivals[kept].sum())
            self._guessed[step.places[guesses.owners[kept]]] = self._num_steps
            step.guesses = guesses.some(kept)
        return kept

    def expected(self, step: Step, guesses: Guesses) -> FloatArray:
        """How many of these guesses will stand, for each request of a step."""
        totals = np.zeros(len(step.places))
        np.add.at(totals, guesses.owners, self.estimate(step, guesses))
        return totals

    def close(self, step: Step, stood: BoolArray, seconds: float, checked: BoolArray | None = None) -> Rates:
        """A step is over: which of its guesses stood, out of those that were checked (all, if nothing is
        said), and how long it took.
        """
        self._num_steps += 1
        if checked is not None:
            step.guesses, stood = step.guesses.some(checked), stood[checked]
        rates = self._account(step, stood, seconds)
        if 0 < step.num_rows <= 2 * self.cost.rows[-1]:
            self.cost.took(step.num_rows, seconds - step.draft_seconds, step.context, sampled=step.sampled)
        if len(stood):
            guesses = step.guesses
            self.survival.learn(
                guesses.stated, guesses.parents, guesses.kinds, step.places[guesses.owners], stood
            )
        if len(step.places):
            self._look_after_plain(step)
        return rates

    def estimate(self, step: Step, guesses: Guesses) -> FloatArray:
        """The survival of every guess."""
        return self.survival.estimate(
            guesses.stated, guesses.parents, guesses.kinds, step.places[guesses.owners]
        )

    def _stands_down(self, greedy: BoolArray) -> BoolArray:
        """Whose class of requests loses by guessing."""
        return np.where(greedy, self.accounts[True].loses, self.accounts[False].loses)

    def _worth(self, step: Step) -> Worth:
        """The curve of a step's passes, and what a second is worth in tokens: plain decoding of these
        requests alone, without prompts that others read, times the gain of late.
        """
        curve = self.cost.cautious(step.rows, step.context, sampled=step.sampled)
        plain = read_one(*curve, float(len(step.places)))
        return curve, self._gain.value * len(step.places) / plain

    def _take(
        self, step: Step, guesses: Guesses, survivals: FloatArray, kept: BoolArray, worth: Worth
    ) -> None:
        """Keep the likeliest guesses, whoever's they are, as many as pay."""
        free = np.flatnonzero(~kept & ~self._stands_down(step.greedy)[guesses.owners])
        curve, rate = worth
        rows = step.rows + int(kept.sum())
        order = free[likeliest(survivals[free], rows, curve, rate)]
        tokens = step.tokens + float(survivals[kept].sum())
        num, _ = how_many(survivals[order], tokens, rows, curve, rate, 0.0)
        kept[order[:num]] = True

    def _probe(
        self, step: Step, guesses: Guesses, survivals: FloatArray, kept: BoolArray, worth: Worth
    ) -> None:
        """Let requests that got no guess have one, as many as can be paid for, who waited longest first."""
        firsts = guesses.firsts()
        has = np.bincount(guesses.owners[kept], minlength=len(step.places)) > 0
        firsts = firsts[~has[guesses.owners[firsts]]]
        if not len(firsts) or self._since_plain >= PLAIN_EVERY:
            return
        firsts = firsts[np.argsort(self._guessed[step.places[guesses.owners[firsts]]], kind="stable")]
        rows = step.rows + int(kept.sum())
        curve, rate = worth
        seconds = read(*curve, np.arange(rows, rows + len(firsts) + 1, dtype=np.float64))
        hopes = np.where(self._stands_down(step.greedy)[guesses.owners[firsts]], 0.0, survivals[firsts])
        losses = seconds[1:] - seconds[0] - np.cumsum(hopes) / rate
        num = int(np.searchsorted(np.maximum.accumulate(losses), self.purse.seconds, side="right"))
        if num and self.purse.pay(float(losses[num - 1])):
            kept[firsts[:num]] = True

    def _account(self, step: Step, stood: BoolArray, seconds: float) -> Rates:
        """Book what guesses brought and what they took, those that nobody asked us about left out."""
        num = len(step.places)
        if not num:  # prompts alone, or nothing at all
            return Rates(0.0, 0.0, 0.0)
        plain = self.cost.at(step.rows, step.context, sampled=step.sampled)
        a_token = self.cost.at(num, step.context, sampled=step.sampled) / num
        expected = self.cost.at(step.num_rows, step.context, sampled=step.sampled) + step.draft_seconds
        believed = min(max(seconds, (1 - BELIEVED) * expected), (1 + BELIEVED) * expected)
        owners = step.guesses.owners
        for greedy, account in self.accounts.items():
            mine = (step.greedy[owners] == greedy) & step.adaptive[owners]
            if mine.any():
                account.book(
                    float(stood[mine].sum()) * a_token,
                    (believed - plain) * float(mine.mean()),
                    plain * float((step.greedy == greedy).mean()),
                )
        self.purse.earn(seconds)
        if step.adaptive.all():
            self._gain.add((num + int(stood.sum())) / num, believed / plain)
        return Rates(step.tokens / expected, (num + int(stood.sum())) / seconds, num / plain)

    def _look_after_plain(self, step: Step) -> None:
        """See to it that plain steps are measured now and then."""
        guessed = len(step.guesses) > 0 or step.draft_seconds > 0
        self._since_plain = self._since_plain + 1 if guessed and not step.plain else 0
        self._plain_next = False
        if self._since_plain >= PLAIN_AFTER:
            plain, this = self.cost(
                np.array([step.rows, step.num_rows]), step.context, sampled=step.sampled
            ).tolist()
            expected = step.tokens / len(step.places) * plain / (this + step.draft_seconds)
            self._plain_next = self.purse.pay(plain * (1 - 1 / max(self._gain.value, expected)))
