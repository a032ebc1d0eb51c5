"""Claims about single outcomes rather than laws: `follow`, the race, and lenience at temperature 0.

`follow` must emit the target's own tokens whatever was guessed, so every draft meets every target. The race
must pick x with probability p(x), so it is run on clocks that are symbols.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from forerun.audit.exact.claims import Claim, ClaimKind
from forerun.audit.exact.symbolic_random import Branch, Clock, outcomes
from forerun.audit.exact.toy_models import BUSHES, CHAINS, FORKS, Prefix, ToyModel, as_row
from forerun.core.draft_forest import NONE, Forest
from forerun.core.exponential_race import exponential_race
from forerun.core.lenient import lenient_greedy
from forerun.core.match_target import match_target
from forerun.types import Draft, Verdict

Following: TypeAlias = Callable[[Forest, Any], list[Verdict]]

PARENTS = (*(chain.parents for chain in CHAINS), *FORKS, *BUSHES)


@dataclass(frozen=True)
class Meeting:
    """A draft, and the token a target takes after each prefix that the draft holds."""

    draft: Draft
    contexts: tuple[Prefix, ...]
    takes: dict[Prefix, int]

    def plain(self) -> list[int]:
        """What plain decoding says, up to the first token after what the draft holds."""
        said: Prefix = ()
        while said in self.takes:
            said = (*said, self.takes[said])
        return list(said)

    def ends_well(self, verdict: Verdict) -> bool:
        """Whether the words are those of plain decoding, and all that the draft holds of them.

        Where siblings repeat a token the first is followed, so a longer match behind another may be missed.
        """
        said, plain = verdict.tokens(self.draft), self.plain()
        siblings_differ = len(set(self.contexts)) == len(self.contexts)
        return said == plain if siblings_differ else said == plain[: len(said)]


def meetings(parents: tuple[int, ...], vocab_size: int) -> Iterator[Meeting]:
    """Every draft of this shape with every target."""
    for tokens in product(range(vocab_size), repeat=len(parents)):
        draft = Draft(np.array(tokens), np.array(parents), np.zeros(len(parents), dtype=bool))
        contexts = ((), *(tuple(tokens[i] for i in draft.path(node)) for node in range(len(parents))))
        distinct = sorted(set(contexts))
        for taken in product(range(vocab_size), repeat=len(distinct)):
            yield Meeting(draft, contexts, dict(zip(distinct, taken, strict=True)))


def same_words(follower: Following) -> tuple[bool, int, int]:
    """Whether every meeting ends in the words of plain decoding; the cases and outcomes that were tried."""
    same, num_cases, num_outcomes = True, 0, 0
    for parents in PARENTS:
        for vocab_size in (2, 3):
            if vocab_size ** (2 * len(parents)) > 20_000:
                continue
            met = list(meetings(parents, vocab_size))
            taken = np.array([meeting.takes[context] for meeting in met for context in meeting.contexts])
            verdicts = follower(Forest.pack([meeting.draft for meeting in met]), taken)
            same &= all(meeting.ends_well(verdict) for meeting, verdict in zip(met, verdicts, strict=True))
            num_cases, num_outcomes = num_cases + 1, num_outcomes + len(met)
    return same, num_cases, num_outcomes


def follow_without_looking(forest: Forest, taken: Any) -> list[Verdict]:
    """The first child is kept whatever the target takes."""
    return match_target(forest, _Unseen(forest, np.asarray(taken)))


class _Unseen:
    """Pretends that the target takes whatever was guessed first."""

    def __init__(self, forest: Forest, taken: Any) -> None:
        self.forest, self.taken = forest, taken

    def __getitem__(self, rows: Any) -> Any:
        child = self.forest.first_child[rows]
        return np.where(child == NONE, self.taken[rows], self.forest.tokens[child])


def follow_one_row_late(forest: Forest, taken: Any) -> list[Verdict]:
    """Each guess is held against what the target takes after it, not before."""
    later = np.append(np.asarray(taken)[1:], 0)
    return match_target(forest, later)


def prove_follow() -> Iterator[Claim]:
    """`follow`, and two ways to get it wrong."""
    same, num_cases, num_outcomes = same_words(match_target)
    yield Claim("follow, chains and trees", ClaimKind.LOSSLESS, same, num_cases, num_outcomes)
    for name, mutant in (
        ("follow without looking", follow_without_looking),
        ("follow a row late", follow_one_row_late),
    ):
        same, num_cases, num_outcomes = same_words(mutant)
        yield Claim(name, ClaimKind.MUTANT, not same, num_cases, num_outcomes)


def race_law(racer: Callable[[Sequence[Any], Sequence[Any]], int]) -> tuple[Fraction, int, int]:
    """The largest distance between p and the law of the winner; cases and outcomes."""
    furthest, num_cases, num_outcomes = Fraction(0), 0, 0
    for vocab_size, seed, flavour in product((2, 3, 4), range(6), ("generic", "sparse")):
        p = ToyModel(vocab_size, seed, flavour).p(())
        law: dict[int, Fraction] = defaultdict(Fraction)

        def run(branch: Branch, p: Sequence[Fraction] = p) -> int:
            return racer(p, [Clock(branch) for _ in p])

        for winner, weight in outcomes(run):
            law[int(str(winner))] += weight
            num_outcomes += 1
        furthest = max(furthest, sum((abs(law[x] - p_x) for x, p_x in enumerate(p)), Fraction(0)) / 2)
        num_cases += 1
    return furthest, num_cases, num_outcomes


def race_unweighted(p: Sequence[Any], clocks: Sequence[Any]) -> int:
    """The first clock to ring among the possible tokens, whatever p says."""
    return exponential_race([int(p_x > 0) for p_x in p], clocks)


def prove_race() -> Iterator[Claim]:
    """The target's own draw, and one that forgets p."""
    distance, num_cases, num_outcomes = race_law(exponential_race)
    yield Claim(
        "race, the target's own draw", ClaimKind.LOSSLESS, distance == 0, num_cases, num_outcomes, distance
    )
    distance, num_cases, num_outcomes = race_law(race_unweighted)
    yield Claim("race without p", ClaimKind.MUTANT, distance > 0, num_cases, num_outcomes, distance)


def keeps_within(judge: Callable[..., list[Verdict]], lenience: Fraction) -> tuple[bool, int]:
    """Whether every kept guess has p at least l times the largest and the last token is the most likely."""
    kept_within, num_outcomes = True, 0
    for parents, vocab_size, seed in product(PARENTS, (2, 3), range(3)):
        if vocab_size ** len(parents) > 100:
            continue
        world = ToyModel(vocab_size, seed)
        drafts = [
            Draft(np.array(tokens), np.array(parents), np.zeros(len(parents), dtype=bool))
            for tokens in product(range(vocab_size), repeat=len(parents))
        ]
        paths = [((), *(tuple(int(d.tokens[i]) for i in d.path(n)) for n in range(len(d)))) for d in drafts]
        p = np.stack([as_row(world.p(context)) for contexts in paths for context in contexts])
        verdicts = judge(Forest.pack(drafts), p, np.array([lenience] * len(drafts), dtype=object))
        for draft, verdict in zip(drafts, verdicts, strict=True):
            said = tuple(verdict.tokens(draft))
            laws = [world.p(said[:i]) for i in range(len(said))]
            kept_within &= all(law[x] >= lenience * max(law) for x, law in zip(said, laws, strict=True))
            kept_within &= laws[-1][said[-1]] == max(laws[-1])
        num_outcomes += len(drafts)
    return kept_within, num_outcomes


def lenient_greedy_as_printed(forest: Forest, p: Any, lenience: Any) -> list[Verdict]:
    """The paper's misprint: a guess stands while p(x) <= l max(p)."""
    favoured = (p <= p.max(-1, keepdims=True) * lenience[0]).astype(object)
    return lenient_greedy(forest, favoured + Fraction(1), lenience / lenience)


def prove_lenient_greedy() -> Iterator[Claim]:
    """Lenience at temperature 0, and its misprint."""
    for lenience in (Fraction(1), Fraction(1, 2)):
        within, num_outcomes = keeps_within(lenient_greedy, lenience)
        yield Claim(
            f"lenient at temperature 0, l = {lenience}", ClaimKind.LOSSY, within, len(PARENTS), num_outcomes
        )
    within, num_outcomes = keeps_within(lenient_greedy_as_printed, Fraction(1, 2))
    yield Claim(
        "lenient at temperature 0, misprinted", ClaimKind.MUTANT, not within, len(PARENTS), num_outcomes
    )
