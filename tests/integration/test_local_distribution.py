"""The law of the first three sampled tokens, through the whole local engine, against exact probabilities.

A chi-square test of 12,000 samples, fixed beforehand; it fails one time in ten thousand if all is well. The
sabotaged twin must fail it by far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from local_models import VOCAB, answers, make_drafters, make_engine
from scipy.stats import chi2

from forerun.engines.local.request import Request
from forerun.types import Draft, Drafter, FloatArray, Proposal, RequestView, SamplingParams

PROMPT = (3, 1, 4, 1, 5)
SAMPLES, ERROR = 12_000, 1e-4
SAMPLING = SamplingParams(temperature=0.9, top_k=10)


@pytest.fixture(scope="module")
def law(tiny_llama: Any) -> FloatArray:
    """p of every three tokens: top-k and temperature by hand, in double precision."""
    texts = np.array([[*PROMPT, a, b] for a in range(VOCAB) for b in range(VOCAB)])
    with torch.inference_mode():
        logits = tiny_llama.double()(torch.from_numpy(texts), use_cache=False).logits[:, -3:]
    tiny_llama.float()
    kept = logits.topk(SAMPLING.top_k, dim=-1)
    warped = torch.full_like(logits, -torch.inf).scatter(-1, kept.indices, kept.values)
    p = torch.softmax(warped / SAMPLING.temperature, -1).numpy().reshape(VOCAB, VOCAB, 3, VOCAB)
    joint: FloatArray = p[0, 0, 0][:, None, None] * p[:, 0, 1][:, :, None] * p[:, :, 2]
    return joint


def p_value(engine: Any, law: FloatArray) -> float:
    """Chi-square over all outcomes of three tokens, the rare ones together."""
    counts = np.zeros((VOCAB,) * 3)
    for begin in range(0, SAMPLES, 500):
        asked = [Request(str(begin + i), PROMPT, max_tokens=3, sampling=SAMPLING) for i in range(500)]
        for result in answers(engine, asked):
            counts[result.token_ids] += 1
    expected = SAMPLES * law.ravel()
    common = expected >= 5
    seen = np.append(counts.ravel()[common], counts.ravel()[~common].sum())
    due = np.append(expected[common], expected[~common].sum())
    assert counts.ravel()[expected == 0].sum() == 0, "something was said that cannot be"
    return float(chi2.sf(((seen - due) ** 2 / due).sum(), len(seen) - 1))


CASES = [
    (("model",), "reject"),
    (("model",), "block"),
    (("model", "suffix"), "auto"),
    (("drawn tree",), "auto"),
    (("suffix",), "auto"),
]


@pytest.mark.parametrize(("names", "verifier"), CASES)
def test_three_tokens_have_the_law_of_the_target(
    tiny_llama: Any, law: FloatArray, names: tuple[str, ...], verifier: str
) -> None:
    drafters = make_drafters(tiny_llama, *names, slots=64)
    engine = make_engine(tiny_llama, drafters, slots=64, length=16, verifier=verifier, max_draft=6)
    assert p_value(engine, law) > ERROR
    assert engine.guesser.errors.total() == 0


class Lying:
    """A drafter that does not say what its guesses were drawn from."""

    def __init__(self, honest: Drafter) -> None:
        self.honest = honest
        self.learn, self.forget = honest.learn, honest.forget

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [
            replace(draft, q={node: self._other(q) for node, q in draft.q.items()})
            for draft in self.honest.propose(views, budgets)
        ]

    def _other(self, q: Proposal) -> Proposal:
        wider = q.probs.sqrt()
        return Proposal(wider / wider.sum(), q.replacement)


@pytest.mark.parametrize(("names", "verifier"), [CASES[0], CASES[1], CASES[3]])
def test_a_q_that_was_not_drawn_from_is_found_out(
    tiny_llama: Any, law: FloatArray, names: tuple[str, ...], verifier: str
) -> None:
    drafters = make_drafters(tiny_llama, *names, slots=64)
    lying = {name: Lying(drafter) for name, drafter in drafters.items()}
    engine = make_engine(tiny_llama, lying, slots=64, length=16, verifier=verifier, max_draft=6)
    assert p_value(engine, law) < 1e-9
