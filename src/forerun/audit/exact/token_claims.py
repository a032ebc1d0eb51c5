"""Claims about single outcomes rather than distributions: matching, the race, lenience at temperature 0.

`match_target` must emit the target's tokens whatever was drafted, so every draft is verified against every
target. The race must select x with probability p(x), so it runs on symbolic clocks.
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
from forerun.core.lenient_verification import lenient_greedy
from forerun.core.target_matching import match_target
from forerun.types import Draft, Verdict

TokenMatcher: TypeAlias = Callable[[Forest, Any], list[Verdict]]

PARENTS = (*(chain.parents for chain in CHAINS), *FORKS, *BUSHES)


@dataclass(frozen=True)
class MatchCase:
    """A draft, and the target's token after each prefix in the draft."""

    draft: Draft
    contexts: tuple[Prefix, ...]
    target_tokens: dict[Prefix, int]

    def baseline(self) -> list[int]:
        """The tokens of non-speculative decoding, up to the first token past the draft."""
        prefix: Prefix = ()
        while prefix in self.target_tokens:
            prefix = (*prefix, self.target_tokens[prefix])
        return list(prefix)

    def is_lossless(self, verdict: Verdict) -> bool:
        """Whether the committed tokens are those of non-speculative decoding, as many as the draft contains.

        Where siblings repeat a token the first is matched, so a longer match below another one can be missed.
        """
        committed, baseline = verdict.tokens(self.draft), self.baseline()
        siblings_differ = len(set(self.contexts)) == len(self.contexts)
        return committed == baseline if siblings_differ else committed == baseline[: len(committed)]


def match_cases(parents: tuple[int, ...], vocab_size: int) -> Iterator[MatchCase]:
    """Every draft of this shape with every target."""
    for tokens in product(range(vocab_size), repeat=len(parents)):
        draft = Draft(np.array(tokens), np.array(parents), np.zeros(len(parents), dtype=bool))
        contexts = ((), *(tuple(tokens[i] for i in draft.path(node)) for node in range(len(parents))))
        distinct = sorted(set(contexts))
        for targets in product(range(vocab_size), repeat=len(distinct)):
            yield MatchCase(draft, contexts, dict(zip(distinct, targets, strict=True)))


def matches_baseline(matcher: TokenMatcher) -> tuple[bool, int, int]:
    """Whether every case commits the baseline tokens; also the number of cases and outcomes."""
    same, num_cases, num_outcomes = True, 0, 0
    for parents in PARENTS:
        for vocab_size in (2, 3):
            if vocab_size ** (2 * len(parents)) > 20_000:
                continue
            cases = list(match_cases(parents, vocab_size))
            targets = np.array([case.target_tokens[context] for case in cases for context in case.contexts])
            verdicts = matcher(Forest.pack([case.draft for case in cases]), targets)
            same &= all(case.is_lossless(verdict) for case, verdict in zip(cases, verdicts, strict=True))
            num_cases, num_outcomes = num_cases + 1, num_outcomes + len(cases)
    return same, num_cases, num_outcomes


def accept_any_token(forest: Forest, target_tokens: Any) -> list[Verdict]:
    """Accepts the first child whatever the target token is."""
    return match_target(forest, _EchoedDraft(forest, np.asarray(target_tokens)))


class _EchoedDraft:
    """Target tokens that always equal the first draft token."""

    def __init__(self, forest: Forest, target_tokens: Any) -> None:
        self.forest, self.target_tokens = forest, target_tokens

    def __getitem__(self, rows: Any) -> Any:
        child = self.forest.first_child[rows]
        return np.where(child == NONE, self.target_tokens[rows], self.forest.tokens[child])


def match_one_row_late(forest: Forest, target_tokens: Any) -> list[Verdict]:
    """Compares each draft token with the target token after it, not before."""
    later = np.append(np.asarray(target_tokens)[1:], 0)
    return match_target(forest, later)


def prove_match_target() -> Iterator[Claim]:
    """`match_target`, and two mutants of it."""
    same, num_cases, num_outcomes = matches_baseline(match_target)
    yield Claim("match_target, chains and trees", ClaimKind.LOSSLESS, same, num_cases, num_outcomes)
    for name, mutant in (
        ("match_target accepts any token", accept_any_token),
        ("match_target one row late", match_one_row_late),
    ):
        same, num_cases, num_outcomes = matches_baseline(mutant)
        yield Claim(name, ClaimKind.MUTANT, not same, num_cases, num_outcomes)


def race_distance(race: Callable[[Sequence[Any], Sequence[Any]], int]) -> tuple[Fraction, int, int]:
    """The largest distance between p and the winner's distribution; also the number of cases and outcomes."""
    max_distance, num_cases, num_outcomes = Fraction(0), 0, 0
    for vocab_size, seed, flavour in product((2, 3, 4), range(6), ("generic", "sparse")):
        p = ToyModel(vocab_size, seed, flavour).p(())
        winners: dict[int, Fraction] = defaultdict(Fraction)

        def run(branch: Branch, p: Sequence[Fraction] = p) -> int:
            return race(p, [Clock(branch) for _ in p])

        for winner, weight in outcomes(run):
            winners[int(str(winner))] += weight
            num_outcomes += 1
        max_distance = max(
            max_distance, sum((abs(winners[x] - p_x) for x, p_x in enumerate(p)), Fraction(0)) / 2
        )
        num_cases += 1
    return max_distance, num_cases, num_outcomes


def race_unweighted(p: Sequence[Any], clocks: Sequence[Any]) -> int:
    """A race that ignores p except for its zeros."""
    return exponential_race([int(p_x > 0) for p_x in p], clocks)


def prove_race() -> Iterator[Claim]:
    """The exponential race, and a mutant that ignores p."""
    distance, num_cases, num_outcomes = race_distance(exponential_race)
    yield Claim(
        "exponential_race, sampling from p",
        ClaimKind.LOSSLESS,
        distance == 0,
        num_cases,
        num_outcomes,
        distance,
    )
    distance, num_cases, num_outcomes = race_distance(race_unweighted)
    yield Claim(
        "exponential_race without p", ClaimKind.MUTANT, distance > 0, num_cases, num_outcomes, distance
    )


def stays_within_bound(verifier: Callable[..., list[Verdict]], lenience: Fraction) -> tuple[bool, int]:
    """Whether every accepted token has p at least l times the maximum and the next token is the argmax."""
    within, num_outcomes = True, 0
    for parents, vocab_size, seed in product(PARENTS, (2, 3), range(3)):
        if vocab_size ** len(parents) > 100:
            continue
        model = ToyModel(vocab_size, seed)
        drafts = [
            Draft(np.array(tokens), np.array(parents), np.zeros(len(parents), dtype=bool))
            for tokens in product(range(vocab_size), repeat=len(parents))
        ]
        paths = [((), *(tuple(int(d.tokens[i]) for i in d.path(n)) for n in range(len(d)))) for d in drafts]
        p = np.stack([as_row(model.p(context)) for contexts in paths for context in contexts])
        verdicts = verifier(Forest.pack(drafts), p, np.array([lenience] * len(drafts), dtype=object))
        for draft, verdict in zip(drafts, verdicts, strict=True):
            tokens = tuple(verdict.tokens(draft))
            ps = [model.p(tokens[:i]) for i in range(len(tokens))]
            within &= all(p[x] >= lenience * max(p) for x, p in zip(tokens, ps, strict=True))
            within &= ps[-1][tokens[-1]] == max(ps[-1])
        num_outcomes += len(drafts)
    return within, num_outcomes


def lenient_greedy_as_printed(forest: Forest, p: Any, lenience: Any) -> list[Verdict]:
    """The paper's misprint: accepts while p(x) <= l max(p)."""
    accepted = (p <= p.max(-1, keepdims=True) * lenience[0]).astype(object)
    return lenient_greedy(forest, accepted + Fraction(1), lenience / lenience)


def prove_lenient_greedy() -> Iterator[Claim]:
    """Lenience at temperature 0, and its misprint."""
    for lenience in (Fraction(1), Fraction(1, 2)):
        within, num_outcomes = stays_within_bound(lenient_greedy, lenience)
        yield Claim(
            f"lenient at temperature 0, l = {lenience}", ClaimKind.LOSSY, within, len(PARENTS), num_outcomes
        )
    within, num_outcomes = stays_within_bound(lenient_greedy_as_printed, Fraction(1, 2))
    yield Claim(
        "lenient at temperature 0, misprinted", ClaimKind.MUTANT, not within, len(PARENTS), num_outcomes
    )
