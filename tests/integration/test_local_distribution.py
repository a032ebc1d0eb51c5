"""The distribution of the first three sampled tokens of the local engine, against exact probabilities.

A chi-square test with 12,000 samples, a size fixed beforehand, and a false-alarm rate of 1e-4. The sabotaged
twin must fail it by far with half of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from forerun.engines.local.request import Request
from forerun.types import Draft, Drafter, FloatArray, Proposal, RequestView, SamplingParams
from integration.local_models import VOCAB, generate, make_drafters, make_engine

PROMPT = (3, 1, 4, 1, 5)
SAMPLES, ERROR = 12_000, 1e-4
SABOTAGED_SAMPLES = SAMPLES // 2
SAMPLING = SamplingParams(temperature=0.9, top_k=10)


@pytest.fixture(scope="module")
def distribution(tiny_llama: Any) -> FloatArray:
    """p of every triple of tokens, with top-k and temperature computed here in double precision."""
    sequences = np.array([[*PROMPT, a, b] for a in range(VOCAB) for b in range(VOCAB)])
    with torch.inference_mode():
        logits = tiny_llama.double()(torch.from_numpy(sequences), use_cache=False).logits[:, -3:]
    tiny_llama.float()
    top = logits.topk(SAMPLING.top_k, dim=-1)
    warped = torch.full_like(logits, -torch.inf).scatter(-1, top.indices, top.values)
    p = torch.softmax(warped / SAMPLING.temperature, -1).numpy().reshape(VOCAB, VOCAB, 3, VOCAB)
    joint: FloatArray = p[0, 0, 0][:, None, None] * p[:, 0, 1][:, :, None] * p[:, :, 2]
    return joint


def p_value(engine: Any, distribution: FloatArray, num_samples: int = SAMPLES) -> float:
    """Chi-square over all triples of tokens; rare ones are pooled."""
    counts = np.zeros((VOCAB,) * 3)
    for begin in range(0, num_samples, 500):
        requests = [Request(str(begin + i), PROMPT, max_tokens=3, sampling=SAMPLING) for i in range(500)]
        for result in generate(engine, requests):
            counts[result.token_ids] += 1
    expected = num_samples * distribution.ravel()
    common = expected >= 5
    seen = np.append(counts.ravel()[common], counts.ravel()[~common].sum())
    due = np.append(expected[common], expected[~common].sum())
    assert counts.ravel()[expected == 0].sum() == 0, "a token of probability zero was sampled"
    return float(chi2.sf(((seen - due) ** 2 / due).sum(), len(seen) - 1))


CASES = [
    (("model",), "rejection"),
    (("model",), "block"),
    (("model", "suffix"), "auto"),
    (("sampled tree",), "auto"),
    (("suffix",), "auto"),
    (("model with trees",), "auto"),
    (("model", "model 2"), "rejection"),
    (("ngram, sampled",), "auto"),
    (("ngram, sampled", "suffix"), "auto"),
]


@pytest.mark.parametrize(("names", "verifier"), CASES)
def test_three_tokens_have_the_distribution_of_the_target(
    tiny_llama: Any, distribution: FloatArray, names: tuple[str, ...], verifier: str
) -> None:
    drafters = make_drafters(tiny_llama, *names, slots=64)
    engine = make_engine(tiny_llama, drafters, slots=64, length=16, verifier=verifier, max_draft=6)
    assert p_value(engine, distribution) > ERROR
    assert engine.drafter_totals.errors.total() == 0


def test_the_better_of_a_sampled_and_a_looked_up_chain_has_the_distribution_of_the_target(
    tiny_llama: Any, distribution: FloatArray
) -> None:
    drafters = make_drafters(tiny_llama, "model", "suffix", slots=64)
    engine = make_engine(tiny_llama, drafters, slots=64, length=16, max_draft=6, trees=False)
    assert p_value(engine, distribution) > ERROR
    assert engine.drafter_totals.errors.total() == 0


class WrongQ:
    """A drafter that reports a q from which its draft tokens were not sampled."""

    def __init__(self, honest: Drafter) -> None:
        self.honest = honest
        self.learn, self.forget = honest.learn, honest.forget

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [
            replace(
                draft,
                q={
                    int(draft.parents[node]): self._other(q) for node, q in draft.proposals_of_nodes().items()
                },
            )
            for draft in self.honest.propose(views, budgets)
        ]

    def _other(self, q: Proposal) -> Proposal:
        wider = q.probs.sqrt()
        return Proposal(wider / wider.sum(), q.replacement)


@pytest.mark.parametrize(("names", "verifier"), [CASES[0], CASES[1], CASES[3], CASES[5]])
def test_a_wrong_q_is_detected(
    tiny_llama: Any, distribution: FloatArray, names: tuple[str, ...], verifier: str
) -> None:
    drafters = make_drafters(tiny_llama, *names, slots=64)
    wrong = {name: WrongQ(drafter) for name, drafter in drafters.items()}
    engine = make_engine(tiny_llama, wrong, slots=64, length=16, verifier=verifier, max_draft=6)
    assert p_value(engine, distribution, SABOTAGED_SAMPLES) < 1e-9
