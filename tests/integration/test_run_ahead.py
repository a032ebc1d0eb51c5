"""Run-ahead drafting: prepared drafts are those of a draft model that drafts when asked."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.run_ahead import RunAheadModel
from forerun.models.runner import Runner
from forerun.types import RequestView, SamplingParams
from integration.local_models import VOCAB, make_draft_model

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=1.0, seed=7)
PENALIZED = SamplingParams(temperature=1.0, seed=7, frequency_penalty=0.5)
UNSEEDED = SamplingParams(temperature=1.0)


def run_ahead(model: Any, *, outcomes: int = 8, length: int = 256) -> RunAheadModel:
    runner = Runner(copy.deepcopy(model), num_slots=4, max_length=length)
    return RunAheadModel(runner, VOCAB, rng=np.random.default_rng(0), max_outcomes=outcomes)


def sequential(model: Any) -> ModelDrafter:
    return ModelDrafter(Runner(copy.deepcopy(model), num_slots=4, max_length=256), VOCAB)


def exhaust(drafter: RunAheadModel, num_passes: int | None = None) -> None:
    for done, _ in enumerate(drafter.prepare(), start=1):
        if done == num_passes:
            break


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, PENALIZED], ids=["greedy", "seeded", "penalized"])
@pytest.mark.parametrize("num_passes", [None, 0, 1, 2, 3])
def test_prepared_drafts_equal_those_of_sequential_drafting(
    tiny_llama: Any, sampling: SamplingParams, num_passes: int | None
) -> None:
    model = make_draft_model(tiny_llama)
    ahead, plain = run_ahead(model), sequential(model)
    rng = np.random.default_rng(1)
    texts = {"a": [1, 2, 3], "b": [5, 6, 7, 8]}
    for step in range(30):
        views = [
            RequestView(name, list(text), num_prompt=2, sampling=sampling) for name, text in texts.items()
        ]
        budgets = [int(each) for each in rng.integers(1, 5, size=2)]
        found, expected = ahead.propose(views, budgets), plain.propose(views, budgets)
        for text, one, other in zip(texts.values(), found, expected, strict=True):
            assert 0 < len(one) <= len(other)
            assert one.tokens.tolist() == other.tokens[: len(one)].tolist(), step
            accepted = int(rng.integers(0, len(one) + 1))
            text += [*one.tokens[:accepted].tolist(), int(rng.integers(VOCAB))]
        if num_passes != 0:
            exhaust(ahead, num_passes)
    stats = ahead.stats
    assert stats.num_hits + stats.num_misses == 58
    if num_passes is None:
        assert stats.num_hits >= 5, "outcomes are random, and few of them are prepared for"
    if num_passes in {0, 1}:
        assert stats.num_hits == 0


def test_a_draft_equal_to_the_target_is_always_prepared(tiny_llama: Any) -> None:
    ahead, target = run_ahead(tiny_llama), sequential(tiny_llama)
    text = [1, 2, 3]
    for _ in range(12):
        (draft,) = ahead.propose([RequestView("r", list(text), sampling=GREEDY)], [3])
        exhaust(ahead)
        (output,) = target.propose([RequestView("r", list(text), sampling=GREEDY)], [4])
        assert draft.tokens.tolist() == output.tokens[:3].tolist()
        text += output.tokens.tolist()
    assert (ahead.stats.num_hits, ahead.stats.num_misses) == (11, 0)


def test_sampled_drafts_carry_their_q(tiny_llama: Any) -> None:
    ahead = run_ahead(tiny_llama)
    text = [1, 2, 3]
    for _ in range(6):
        view = RequestView("r", list(text), sampling=UNSEEDED)
        (draft,) = ahead.propose([view], [3])
        assert draft.sampled.all()
        plain = sequential(tiny_llama)
        for node, token in enumerate(draft.tokens.tolist()):
            before = [*text, *draft.tokens[:node].tolist()]
            (one,) = plain.propose([RequestView(f"{len(text)} {node}", before, sampling=UNSEEDED)], [1])
            np.testing.assert_allclose(draft.q[node - 1].probs, one.q[-1].probs, atol=1e-5)  # type: ignore[union-attr]
            assert draft.q[node - 1].probs[token] > 0  # type: ignore[union-attr]
        exhaust(ahead)
        text += [*draft.tokens.tolist(), int(np.argmax(np.asarray(ahead_last(ahead))))]
    assert ahead.stats.num_hits >= 3


def ahead_last(drafter: RunAheadModel) -> list[float]:
    """A distribution whose mode is the likeliest prepared token behind all draft tokens."""
    (each,) = drafter._rounds.values()
    weights = [0.0] * VOCAB
    for prepared in each.prepared:
        if prepared.outcome.num_accepted == len(each.chain.tokens):
            weights[prepared.outcome.token] = prepared.outcome.probability
    return weights


def test_without_room_nothing_is_prepared(tiny_llama: Any) -> None:
    ahead = run_ahead(tiny_llama, length=24)
    (draft,) = ahead.propose([RequestView("r", [1, 2, 3], sampling=GREEDY)], [3])
    exhaust(ahead)
    assert len(draft) == 3
    ahead.propose([RequestView("r", [1, 2, 3, *draft.tokens.tolist(), 4], sampling=GREEDY)], [3])
    assert ahead.stats.num_hits == 0
    ahead.forget("r")
    assert ahead.runner.cache.num_free == 4
