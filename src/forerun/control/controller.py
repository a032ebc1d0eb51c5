"""Who decides how far to guess: one controller for an engine, asked once a step.

    step = controller.open(names, rows)          # who is in the pass, and its rows without any guess
    whose = controller.looks(step)                # for whom it is worth looking for guesses
    budgets = controller.allot(step, who, rooms)  # how far somebody is to draw: nothing is drawn yet
    kept = controller.choose(step, guesses)       # which guesses are made
    controller.close(step, stood, seconds)        # what became of them, and how long it took

Guesses that were drawn from a q are never dropped for what they are. How many there are was fixed by `allot`,
which has not seen them; only a step that was to be plain before anybody drew leaves them all out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.control.candidates import ASSUMED, Candidates, Columns, add_ancestors, leading_mask
from forerun.control.draft_budget import MARGIN, Worth, draft_lengths, keep_exploratory, keep_most_likely
from forerun.control.exploration import ExplorationBudget, LookupBackoff, NetGain
from forerun.control.step_cost import StepCost, read_one
from forerun.control.survival import SurvivalEstimator
from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

BASELINE_AFTER: Final = 8
BASELINE_EVERY: Final = 100
"""After so many steps with guesses a plain one is measured, if it can be paid for: where guesses gain little
it costs little. After so many, everything is saved for it."""

FIRST_PASS: Final = 0.1
"""What a pass of a drafter's own model costs before it was measured, as a share of a step of the target."""

BELIEVED: Final = 0.5
"""A step that took longer or shorter by more than this share of what was expected was disturbed."""

LONGEST_LOOK: Final = 0.1
"""The share of a step that a look counts for at most: once in a while something is compiled, or a long prompt
is read, which rest would not spare us."""

EMA_WEIGHT: Final = 0.1
"""What a step counts for in what was so of late."""


@dataclass(slots=True)
class Step:
    """A step that was opened: who is in it, what it is without guesses, and what was decided."""

    places: IntArray
    greedy: BoolArray
    adaptive: BoolArray
    rows: int
    context: int
    plain: bool
    guesses: Candidates
    tokens: float
    num_greedy: int
    draft_seconds: float = 0.0
    look_seconds: float = 0.0
    looking: tuple[bool, bool] | None = None
    promised: Sequence[Sequence[float]] = ((0.0, 0.0), (0.0, 0.0))
    found: tuple[float, float] = (0.0, 0.0)
    """For requests whose tokens are drawn, and for greedy ones: whether guesses are looked for; what those
    promise that were then taken, in tokens, and how many they are; and how many stood.
    """

    @property
    def sampled(self) -> bool:
        """Whether anybody's tokens are drawn."""
        return self.num_greedy < len(self.places)

    @property
    def columns(self) -> tuple[IntArray, BoolArray, BoolArray]:
        """Where everybody is, whose tokens are not drawn, and whose guesses are ours to choose."""
        return self.places, self.greedy, self.adaptive

    @property
    def num_reading(self) -> int:
        """The rows that belong to prompts."""
        return max(0, self.rows - len(self.places))

    @property
    def num_rows(self) -> int:
        """The rows of the pass, guesses included."""
        return self.rows + len(self.guesses)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Tokens per second of a step: as predicted, as measured, and as plain decoding would have said them."""

    predicted: float
    measured: float
    baseline: float


class SpeedupEstimate:
    """How much faster than plain decoding it went of late: tokens over time, both as shares of plain ones."""

    __slots__ = ("_num", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._num, self._tokens, self._seconds = 1, 1.0, 1.0

    def add(self, tokens: float, seconds: float) -> None:
        """A step said so many times as many tokens as plain decoding in so many times its time."""
        self._num += 1
        weight = max(EMA_WEIGHT, 1 / self._num)  # at first all steps count the same
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
        self.survival = SurvivalEstimator()
        self.purse = ExplorationBudget()
        self.accounts = {greedy: NetGain() for greedy in (True, False)}
        self.rests = (LookupBackoff(), LookupBackoff())
        self._gain = SpeedupEstimate()
        self._pass_share: dict[str, float] = {}
        self._reading: dict[str, tuple[float, float]] = {}
        self._owed = 0.0
        self._greedy, self._adaptive = np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
        self._guessed = np.zeros(0, dtype=np.int64)
        self._num_steps = self._since_plain = 0
        self._plain_next = False

    def admit(self, name: str, *, greedy: bool, adaptive: bool = True) -> None:
        """A new request. One that is not `adaptive` gets every guess that there is."""
        place = self.survival.admit(name)
        if place >= len(self._guessed):
            for column in ("_greedy", "_adaptive", "_guessed"):
                setattr(self, column, np.resize(getattr(self, column), 2 * place + 8))
        self._greedy[place], self._adaptive[place] = greedy, adaptive
        self._guessed[place] = self._num_steps

    def forget(self, name: str) -> None:
        """A request is over."""
        self.survival.forget(name)

    def begin_step(self, names: Sequence[str], rows: int, context: int = 0) -> Step:
        """A step begins: whose next tokens it decides, its rows without guesses, its tokens of context."""
        places = np.array([self.survival.place(name) for name in names], dtype=np.int64)
        greedy = self._greedy[places]
        return Step(
            places,
            greedy,
            self._adaptive[places],
            rows,
            context,
            self._plain_next,
            Candidates.none(),
            float(len(names)),
            int(np.count_nonzero(greedy)),
        )

    def should_draft(self, step: Step) -> BoolArray:
        """For whom to look for guesses that cost nothing but the look: where that pays, and wherever every
        guess is wanted.
        """
        drawn, greedy = (rest.should_look_up() and not step.plain for rest in self.rests)
        step.looking = (drawn, greedy)
        return ~step.adaptive | (greedy if greedy == drawn else np.where(step.greedy, greedy, drawn))

    def kind(self, step: Step, source: str, owner: int) -> int:
        """The number of the kind of guess that somebody makes for one of the requests of a step."""
        return self.survival.kind(source, greedy=bool(step.greedy[owner]))

    def draft_lengths(self, step: Step, source: str, rooms: IntArray, reading: int = 0) -> IntArray:
        """How many guesses somebody who takes time for each depth is to make for everybody in a step, and has
        to read so many tokens of prompts first.
        """
        unasked = np.where(step.adaptive, 0, rooms)
        asking = np.where(step.adaptive, rooms, 0)
        if step.plain or not asking.any():
            return unasked
        rooms = np.where(self._stands_down(step.greedy), 0, asking)
        kinds = np.array([self.survival.kind(source, greedy=greedy) for greedy in (False, True)])
        root = np.full(len(rooms), -1)
        chances = self.survival.estimate(
            np.full(len(rooms), ASSUMED), root, kinds[step.greedy.astype(np.int64)], step.places
        )
        curve, rate = self._worth(step)
        a_pass = self._pass_seconds(step, source)
        budgets = draft_lengths(chances, rooms, step.rows, curve, rate, a_pass)
        if budgets.any():
            return unasked + budgets
        firsts = np.minimum(rooms if rooms.any() else asking, 1)  # those that stand down only if all do
        now, wider = (read_one(*curve, float(step.rows + more)) for more in (0, firsts.sum()))
        hope = (float(chances[rooms > 0].sum()) - MARGIN * len(rooms)) / rate
        loss = max(a_pass + wider - now - hope, 0.0) + self._a_token_read(source) * reading
        return unasked + (firsts if self.purse.spend(loss) else 0)

    def record_accepted(self, step: Step, source: str, lengths: IntArray, stood: IntArray) -> None:
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

    def record_draft_time(
        self, step: Step, source: str, num_passes: int, seconds: float, reading: int = 0
    ) -> None:
        """Somebody took so long for so many depths, and to read so many tokens of prompts before."""
        step.draft_seconds += seconds
        a_pass = self._pass_seconds(step, source)
        if num_passes and reading:
            took, tokens = self._reading.get(source, (0.0, 0.0))
            more = max(seconds - num_passes * a_pass, 0.0)
            self._reading[source] = (1 - EMA_WEIGHT) * took + more, (1 - EMA_WEIGHT) * tokens + reading
        elif num_passes:
            known = self._pass_share.get(source, FIRST_PASS)
            share = seconds / num_passes / a_pass * known
            self._pass_share[source] = known + EMA_WEIGHT * (min(share, 2 * known) - known)

    def _a_token_read(self, source: str) -> float:
        """How long somebody takes to read a token of a prompt."""
        took, tokens = self._reading.get(source, (0.0, 1.0))
        return took / tokens

    def _pass_seconds(self, step: Step, source: str) -> float:
        """What a pass of somebody's own model takes for the requests of a step."""
        (alone,) = self._prices(step, len(step.places))
        return self._pass_share.get(source, FIRST_PASS) * alone

    def choose(self, step: Step, guesses: Candidates) -> BoolArray:
        """Which of the guesses are made: as many as tokens per second grow with, and a few to find out."""
        if not len(guesses):
            return np.zeros(0, dtype=bool)
        survivals = self.estimate_survival(step, guesses)
        worth = self._worth(step)
        down = (self.accounts[False].is_losing, self.accounts[True].is_losing)
        purse = self.purse.seconds if self._since_plain < BASELINE_EVERY else -math.inf
        now = (step.rows, step.plain)
        kept, promised, loss = select_candidates(
            guesses.columns, survivals, step.columns, now, worth, down, purse, self._guessed
        )
        self.purse.spend(loss)
        step.tokens += float(survivals[kept].sum())
        step.promised = promised.tolist()
        step.guesses = guesses.select(kept)
        self._guessed[step.places[step.guesses.owners]] = self._num_steps
        return kept

    def expected_gain(self, step: Step, guesses: Candidates) -> FloatArray:
        """What the guesses of each request are worth, in tokens: how many will stand, less the time of their
        rows. One that does not pay counts for nothing unless it is fixed: it would be left out.
        """
        more = len(step.places)
        if not len(guesses):
            return np.zeros(more)
        (knots, seconds), rate = self._worth(step)
        now, wider = (read_one(knots, seconds, float(step.rows + each)) for each in (0, more))
        net = self.estimate_survival(step, guesses) - rate * (wider - now) / more
        totals = np.zeros(more)
        np.add.at(totals, guesses.owners, np.where(guesses.fixed, net, np.maximum(net, 0.0)))
        return totals

    def record_step(
        self, step: Step, stood: BoolArray, seconds: float, checked: BoolArray | None = None
    ) -> Goodput | None:
        """A step is over: which of its guesses stood, out of those that were checked (all, if nothing is
        said), and how long it took, looking for guesses included. None, if nothing can be compared.
        """
        if len(stood) != len(step.guesses):
            raise ValueError(
                f"{len(step.guesses)} guesses were made, and {len(stood)} are said to have ended"
            )
        self._num_steps += 1
        seconds -= step.look_seconds
        if checked is not None and not checked.all():
            step.guesses, stood = step.guesses.select(checked), stood[checked]
        rates = self._account(step, stood, seconds)
        if self.cost.knows(step.num_rows):
            self.cost.update(step.num_rows, seconds - step.draft_seconds, step.context, sampled=step.sampled)
        if len(stood):
            guesses = step.guesses
            self.survival.learn(
                guesses.stated, guesses.parents, guesses.kinds, step.places[guesses.owners], stood
            )
        if len(step.places):
            self._look_after_plain(step)
        return rates

    def estimate_survival(self, step: Step, guesses: Candidates) -> FloatArray:
        """The survival of every guess."""
        return self.survival.estimate(
            guesses.stated, guesses.parents, guesses.kinds, step.places[guesses.owners]
        )

    def _stands_down(self, greedy: BoolArray) -> BoolArray:
        """Whose class of requests loses by guessing."""
        return np.where(greedy, self.accounts[True].is_losing, self.accounts[False].is_losing)

    def _worth(self, step: Step) -> Worth:
        """The curve of a step's passes, and what a second is worth in tokens: plain decoding of these
        requests alone, without prompts that others read, times the gain of late.
        """
        curve = self.cost.upper_curve(step.rows, step.context, sampled=step.sampled)
        plain = read_one(*curve, float(len(step.places)))
        return curve, self._gain.value * len(step.places) / plain

    def _account(self, step: Step, stood: BoolArray, seconds: float) -> Goodput | None:
        """Book what guesses brought and what they took, those that nobody asked us about left out."""
        num = len(step.places)
        if num:
            self.purse.earn(seconds)
        if not num or not self.cost.knows(step.num_rows):  # prompts, and hardly anything else
            self._owed += step.draft_seconds
            return None
        measured = (num + np.count_nonzero(stood)) / (seconds + step.look_seconds)
        if not len(stood) and not step.draft_seconds:  # plain decoding is its own measure
            self._book_looks(step, 0.0, 0.0, seconds)
            if step.adaptive.all():
                self._gain.add(1.0, 1.0)
            return Goodput(measured, measured, measured)
        plain, alone, with_guesses = self._prices(step, step.rows, num, step.num_rows)
        a_token, expected = alone / num, with_guesses + step.draft_seconds
        believed = min(max(seconds, (1 - BELIEVED) * expected), (1 + BELIEVED) * expected)
        self._book(step, stood, (believed - plain, plain, a_token))
        if len(stood):
            self._book_looks(step, a_token, (with_guesses - plain) / len(stood), seconds)
        if step.adaptive.all():
            self._gain.add((num + np.count_nonzero(stood)) / num, believed / plain)
        return Goodput(step.tokens / expected, measured, num / plain)

    def _book(self, step: Step, stood: BoolArray, prices: tuple[float, float, float]) -> None:
        """Book for every class of requests what its guesses brought and what they took: their share of what
        the step took beside a plain one, and of what was spent on drawing where nothing came of it.
        """
        spent, plain, a_token = prices
        if not len(stood):
            self._owed += step.draft_seconds
            return
        books = by_class(step.columns, step.guesses.owners, step.guesses.fixed, stood).tolist()
        for greedy, (share, made, brought, _) in enumerate(books):
            if made:
                cost = (spent + self._owed) * made / len(stood)
                self.accounts[bool(greedy)].record(brought * a_token, cost, plain * share)
        self._owed = 0.0
        step.found = (books[0][3], books[1][3])

    def _book_looks(self, step: Step, a_token: float, a_row: float, seconds: float) -> None:
        """What looking for guesses took, what those promise that were taken, and what stood, as seconds."""
        if step.looking is None or step.plain:
            return
        nums = (len(step.places) - step.num_greedy, step.num_greedy)
        look = min(step.look_seconds, LONGEST_LOOK * seconds)
        for rest, num, looked, (tokens, rows), found in zip(
            self.rests, nums, step.looking, step.promised, step.found, strict=True
        ):
            if num and looked:
                promised, brought = (each * a_token - rows * a_row for each in (tokens, found))
                rest.record_lookup(max(promised, 0.0), brought, look * num / len(step.places))

    def _prices(self, step: Step, *rows: int) -> list[float]:
        """The seconds of passes with so many rows, if they are otherwise like those of a step."""
        curve = self.cost.curve_at(step.context, sampled=step.sampled)
        return [read_one(self.cost.rows, curve, float(num)) for num in rows]

    def _look_after_plain(self, step: Step) -> None:
        """See to it that plain steps are measured now and then."""
        guessed = len(step.guesses) > 0 or step.draft_seconds > 0
        self._since_plain = self._since_plain + 1 if guessed and not step.plain else 0
        self._plain_next = False
        if self._since_plain >= BASELINE_AFTER:
            plain, this = self._prices(step, step.rows, step.num_rows)
            expected = step.tokens / len(step.places) * plain / (this + step.draft_seconds)
            self._plain_next = self.purse.spend(plain * (1 - 1 / max(self._gain.value, expected)))


@compiled
def select_candidates(
    guesses: Columns,
    survivals: FloatArray,
    requests: tuple[IntArray, BoolArray, BoolArray],
    step: tuple[int, bool],
    worth: Worth,
    down: tuple[bool, bool],
    purse: float,
    guessed: IntArray,
) -> tuple[BoolArray, FloatArray, float]:
    """Which guesses are made; what those promise that were taken because they pay, in tokens, and how many
    they are, for requests whose tokens are drawn and for greedy ones; and what it costs to find out.

    Of those whose class of requests, drawn or greedy, is `down` none is taken. Whoever gets none may have one
    to find out, those first who `guessed` longest ago.
    """
    _, parents, _, owners, fixed = guesses
    places, greedy, adaptive = requests
    rows, plain = step
    kept, free = np.empty(len(owners), dtype=np.bool_), np.empty(len(owners), dtype=np.bool_)
    asked = False
    for i in range(len(owners)):
        kept[i] = not adaptive[owners[i]] or (fixed[i] and not plain)
        asked = asked or adaptive[owners[i]]
    add_ancestors(kept, parents)
    promised, loss = np.zeros((2, 2)), 0.0
    if asked and not plain:
        for i in range(len(owners)):
            free[i] = not kept[i] and not down[int(greedy[owners[i]])]
        keep_most_likely(kept, survivals, free, len(places), rows, worth)
        for i in range(len(owners)):
            if kept[i] and free[i]:
                promised[int(greedy[owners[i]]), 0] += survivals[i]
                promised[int(greedy[owners[i]]), 1] += 1
        firsts = _without(kept, guesses, guessed[places])
        hopes = np.where(free, survivals, 0.0)
        loss = keep_exploratory(kept, firsts, hopes, rows, worth, purse)
    return kept, promised, loss


@compiled
def _without(kept: BoolArray, guesses: Columns, guessed: IntArray) -> IntArray:
    """The first guesses of those who have none and could do without, who waited longest first."""
    _, parents, _, owners, fixed = guesses
    firsts = np.full(len(guessed), -1)
    for i in range(len(owners) - 1, -1, -1):
        if parents[i] < 0 and not fixed[i]:
            firsts[owners[i]] = i
    for i in range(len(owners)):
        if kept[i]:
            firsts[owners[i]] = -1
    waiting = np.flatnonzero(firsts >= 0)
    return firsts[waiting[np.argsort(guessed[waiting], kind="mergesort")]]


@compiled
def by_class(
    requests: tuple[IntArray, BoolArray, BoolArray], owners: IntArray, fixed: BoolArray, stood: BoolArray
) -> FloatArray:
    """For requests whose tokens are drawn, and for greedy ones: their share, and of those of their guesses
    that were ours to choose how many were made, how many stood, and how many of these nobody had drawn.
    """
    _, greedy, adaptive = requests
    out = np.zeros((2, 4))
    for i in range(len(greedy)):
        out[int(greedy[i]), 0] += 1 / len(greedy)
    for i in range(len(owners)):
        if adaptive[owners[i]]:
            out[int(greedy[owners[i]]), 1] += 1
            out[int(greedy[owners[i]]), 2] += stood[i]
            out[int(greedy[owners[i]]), 3] += stood[i] and not fixed[i]
    return out


def warm_up() -> None:
    """Compile all that a step needs: nobody should wait for that in the first one."""
    controller = Controller(StepCost.default())
    controller.admit("warm-up", greedy=True, adaptive=False)
    controller.admit("adaptive", greedy=True)
    one, size = np.array([1]), np.array([0.5])
    for name in ("warm-up", "warm-up", "adaptive"):
        step = controller.begin_step([name], 1)
        controller.should_draft(step)
        controller.draft_lengths(step, "warm-up", one)
        kinds = np.array([controller.kind(step, "warm-up", 0)])
        kept = controller.choose(step, Candidates.chains(size, one, kinds, np.array([False])))
        sizes = kept.astype(np.int64)
        controller.record_step(step, leading_mask(sizes, one), 1.0, leading_mask(sizes, one))
