"""The local engine hands the target's logits at verified rows to drafters that learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from forerun.drafters.successor_votes import VoteWeights
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.local.request import Request
from forerun.models.runner import Runner
from forerun.types import Draft, RequestView, SamplingParams, TopTokens, Verdict
from integration.local_models import generate, make_engine

GREEDY = SamplingParams(temperature=0.0)
PROMPTS = [(3, 1, 4, 1, 5, 9, 2, 6), (2, 7, 1, 8, 2, 8), (5,)]


class Recorder:
    """Proposes a fixed tree, whose tokens are mostly rejected, and records the logits that it is given."""

    def __init__(self) -> None:
        self.texts: dict[str, list[int]] = {}
        self.rows: list[tuple[list[int], TopTokens]] = []

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        for view in views:
            self.texts[view.id] = np.asarray(view.tokens).tolist()
        tree = Draft(np.array([1, 2, 3, 4]), np.array([-1, -1, 0, 1]), np.zeros(4, dtype=bool))
        return [tree.truncate(budget) for budget in budgets]

    def learn_logits(self, id: str, top_tokens: TopTokens) -> None:
        self.rows.append((self.texts[id], top_tokens))

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        pass

    def forget(self, id: str) -> None:
        pass


def likeliest(runner: Runner, text: Sequence[int]) -> list[int]:
    """The eight likeliest tokens after a text."""
    with torch.inference_mode():
        likely: list[int] = runner.model(torch.tensor([text])).logits[0, -1].topk(8).indices.tolist()
    return likely


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(temperature=1.0, seed=3)], ids=["greedy", "seeded"]
)
def test_drafters_see_the_logits_of_accepted_and_of_rejected_rows(
    tiny_llama: Any, sampling: SamplingParams
) -> None:
    recorder = Recorder()
    engine = make_engine(tiny_llama, {"recorder": recorder})
    requests = [
        Request(str(number), prompt, max_tokens=12, sampling=sampling)
        for number, prompt in enumerate(PROMPTS)
    ]
    generate(engine, requests)
    reference = Runner(tiny_llama, num_slots=1, max_length=64)
    num_rows = 0
    for text, rows in recorder.rows:
        paths = {(text[-2] if len(text) > 1 else -1, text[-1]): (), (text[-1], 1): (1,), (text[-1], 2): (2,)}
        if text[-1] not in {1, 2, 3, 4}:  # otherwise contexts of different rows are equal
            for context, tokens in zip(rows.contexts.tolist(), rows.tokens.tolist(), strict=True):
                if (path := paths.get(tuple(context))) is not None:
                    assert tokens == likeliest(reference, [*text, *path])
                    num_rows += 1
    assert num_rows > 40
    assert not engine.drafter_totals.errors


def tokens_per_step(tiny_llama: Any, drafter: SuffixDrafter, temperature: float) -> tuple[float, Any]:
    """Tokens per step of a few requests, and their outputs."""
    engine = make_engine(tiny_llama, {"suffix": drafter}, max_draft=8)
    sampling = SamplingParams(temperature=temperature, seed=5)
    requests = [
        Request(str(number), prompt, max_tokens=60, sampling=sampling)
        for number, prompt in enumerate(PROMPTS)
    ]
    results = generate(engine, requests)
    stats = [each.stats for each in results]
    outputs = [each.token_ids for each in results]
    return sum(each.num_tokens for each in stats) / sum(each.num_steps for each in stats), outputs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recycled_logits_raise_tokens_per_step_and_leave_the_output_as_it_is(
    tiny_llama: Any, temperature: float
) -> None:
    none = VoteWeights.of_sources(recycled=False, last_logits=False)
    without, expected = tokens_per_step(tiny_llama, SuffixDrafter(weights=none), temperature)
    recycling, output = tokens_per_step(tiny_llama, SuffixDrafter(), temperature)
    assert output == expected
    assert recycling > 1.02 * without
