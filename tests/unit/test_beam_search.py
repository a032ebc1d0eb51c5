"""Speculative beam search on toy models, against beam search without drafts, written independently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from forerun.core.beam_search import BeamSettings
from forerun.core.token_tree import TokenTree
from forerun.engines.speculative_beams import BeamStats, DraftDepth, search
from forerun.errors import InvalidRequest
from forerun.types import ROOT

SEEDS = range(12)


def toy_log_probs(seed: int, path: Sequence[int], vocab_size: int) -> torch.Tensor:
    rng = np.random.default_rng([seed, *path])
    return torch.log_softmax(torch.from_numpy(2 * rng.standard_normal(vocab_size)).float(), dim=-1)


class ToyModel:
    """A model whose log-probabilities are drawn at random for each path."""

    def __init__(self, tree: TokenTree, seed: int, vocab_size: int) -> None:
        self.tree, self.seed, self.vocab_size = tree, seed, vocab_size
        self.computed = {ROOT}
        self.num_passes = 0

    def has(self, node: int) -> bool:
        return node in self.computed

    def compute(self, nodes: Iterable[int]) -> None:
        missing = set(self.tree.with_ancestors(nodes)) - self.computed
        self.num_passes += bool(missing)
        self.computed |= missing

    def log_probs(self, nodes: Sequence[int]) -> torch.Tensor:
        assert self.computed.issuperset(nodes)
        return torch.stack(
            [toy_log_probs(self.seed, self.tree.path(node), self.vocab_size) for node in nodes]
        )

    def keep(self, nodes: Iterable[int]) -> None:
        self.computed &= set(self.tree.with_ancestors(nodes))


def plain_beam_search(
    seed: int, vocab_size: int, settings: BeamSettings
) -> list[tuple[tuple[int, ...], float]]:
    """The finished outputs and their scores, best first."""
    beams: list[tuple[tuple[int, ...], Any]] = [((), np.float32(0.0))]
    finished: list[tuple[tuple[int, ...], float]] = []
    for length in range(1, settings.max_tokens + 1):
        ranked = sorted(
            (
                ((*path, token), np.float32(score + log_prob))
                for path, score in beams
                for token, log_prob in enumerate(toy_log_probs(seed, path, vocab_size).numpy())
            ),
            key=lambda each: -each[1],
        )
        first = ranked[: settings.num_beams]
        ended = {
            path for path, _ in ranked if path[-1] in settings.end_tokens or length == settings.max_tokens
        }
        finished += [
            (path, score / length**settings.length_penalty) for path, score in first if path in ended
        ]
        finished = sorted(finished, key=lambda each: -each[1])[: settings.num_beams]
        beams = [each for each in ranked if each[0] not in ended][: settings.num_beams]
        if not beams:
            break
        if len(finished) == settings.num_beams:
            if settings.early_stopping is True:
                break
            longest = settings.early_stopping == "never" and settings.length_penalty > 0
            best_length = settings.max_tokens if longest else length
            if beams[0][1] / best_length**settings.length_penalty <= finished[-1][1]:
                break
    return finished


def speculative(
    seed: int, draft_seed: int | None, vocab_size: int, settings: BeamSettings, *, model: type = ToyModel
) -> tuple[list[tuple[tuple[int, ...], float]], BeamStats]:
    tree, stats = TokenTree(), BeamStats()
    target = model(tree, seed, vocab_size)
    draft = None if draft_seed is None else ToyModel(tree, draft_seed, vocab_size)
    beams = search(target, draft, tree, settings, DraftDepth(lambda rows: 1.0 + 0.01 * rows), stats)
    assert stats.num_passes == target.num_passes
    return [(tuple(tree.path(each.node)), each.score) for each in beams.finished], stats


def same(one: list[tuple[tuple[int, ...], float]], other: list[tuple[tuple[int, ...], float]]) -> bool:
    return [path for path, _ in one] == [path for path, _ in other] and np.allclose(
        [score for _, score in one], [score for _, score in other], rtol=1e-5
    )


CASES = list(
    product((1, 2, 3), (-0.5, 0.0, 1.0, 2.0), (True, False, "never"), (frozenset(), frozenset({0, 2})))
)


@pytest.mark.parametrize(("num_beams", "penalty", "early", "end_tokens"), CASES)
def test_the_result_is_that_of_beam_search_without_drafts(num_beams, penalty, early, end_tokens) -> None:  # type: ignore[no-untyped-def]
    settings = BeamSettings(num_beams, 6, penalty, early, end_tokens)
    for seed in SEEDS:
        expected = plain_beam_search(seed, 5, settings)
        assert expected
        for draft_seed in (None, seed, seed + 100):
            found, stats = speculative(seed, draft_seed, 5, settings)
            assert same(found, expected), (seed, draft_seed)
            assert stats.num_passes <= stats.num_steps


def test_a_draft_equal_to_the_target_saves_passes() -> None:
    settings = BeamSettings(num_beams=2, max_tokens=12)
    passes = {
        draft: sum(speculative(seed, seed if draft else None, 5, settings)[1].num_passes for seed in SEEDS)
        for draft in (False, True)
    }
    assert passes[False] == 11 * len(SEEDS), "one pass for each token but the first and the last"
    assert passes[True] <= 0.4 * passes[False]


def test_the_comparison_finds_a_search_that_believes_the_draft() -> None:
    class Believes(ToyModel):
        """Takes the drafted continuations for computed, with another model's log-probabilities."""

        def log_probs(self, nodes: Sequence[int]) -> torch.Tensor:
            seeds = [self.seed + 100 * (len(self.tree.path(node)) % 3 == 2) for node in nodes]
            return torch.stack(
                [
                    toy_log_probs(seed, self.tree.path(node), self.vocab_size)
                    for seed, node in zip(seeds, nodes, strict=True)
                ]
            )

    settings = BeamSettings(num_beams=2, max_tokens=6)
    assert not all(
        same(
            speculative(seed, seed + 100, 5, settings, model=Believes)[0],
            plain_beam_search(seed, 5, settings),
        )
        for seed in SEEDS
    )


def test_invalid_settings_are_refused() -> None:
    for settings in ({"num_beams": 0}, {"max_tokens": 0}, {"early_stopping": "always"}):
        with pytest.raises(InvalidRequest):
            BeamSettings(**settings)
