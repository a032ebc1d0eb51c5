"""Speculative beam search of the local engine against transformers' beam search."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from forerun import LLM
from forerun.core.beam_search import BeamSettings
from forerun.engines.local.beam_search import BeamModels, run_beam_search
from forerun.engines.speculative_beams import DraftDepth
from forerun.errors import InvalidRequest
from forerun.models.input_rows import InputRows
from forerun.models.runner import Runner
from integration.local_models import make_draft_model

PROMPTS = [[1, 2, 3], [5], [7, 8, 9, 10, 11, 3, 4], [int(i) for i in np.arange(60) % 13]]


def expected(model: Any, prompt: list[int], settings: BeamSettings) -> tuple[list[list[int]], list[float]]:
    """The outputs of transformers and their scores, best first; without the padding of shorter ones."""
    config = GenerationConfig(
        num_beams=settings.num_beams,
        num_return_sequences=settings.num_beams,
        max_new_tokens=settings.max_tokens,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
        eos_token_id=sorted(settings.end_tokens) or None,
        pad_token_id=-1,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = torch.tensor([prompt])
    model = copy.deepcopy(model)
    model.generation_config = GenerationConfig()  # without end-of-sequence tokens of its own
    found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    outputs = [[token for token in row[len(prompt) :] if token >= 0] for row in found.sequences.tolist()]
    return outputs, found.sequences_scores.tolist()


def runner(model: Any) -> Runner:
    return Runner(copy.deepcopy(model), num_slots=2, max_length=512)


@pytest.mark.parametrize(
    "settings",
    [
        BeamSettings(4, 24),
        BeamSettings(4, 24, end_tokens=frozenset({3})),
        BeamSettings(3, 20, 0.0, early_stopping="never", end_tokens=frozenset({3, 7})),
        BeamSettings(2, 24, 2.0, early_stopping="never", end_tokens=frozenset({5})),
        BeamSettings(4, 24, -0.5, early_stopping=True, end_tokens=frozenset({3, 5})),
    ],
    ids=str,
)
@pytest.mark.parametrize("noise", [None, 0.0, 0.02], ids=["no draft", "equal draft", "another draft"])
def test_outputs_and_scores_are_those_of_transformers(
    tiny_llama: Any, settings: BeamSettings, noise: float | None
) -> None:
    draft = None if noise is None else runner(make_draft_model(tiny_llama, noise))
    models = BeamModels(runner(tiny_llama), draft, None)
    for prompt in PROMPTS:
        result = run_beam_search(models, prompt, settings, DraftDepth(lambda _: 1.0))
        outputs, scores = expected(tiny_llama, prompt, settings)
        assert [list(each.token_ids) for each in result.outputs] == outputs
        assert [each.score for each in result.outputs] == pytest.approx(scores, abs=1e-4)
        assert result.stats.num_passes <= result.stats.num_steps
        if noise == 0.0:
            assert result.stats.num_passes < result.stats.num_steps
    assert models.target.cache.num_free == 2, "slots are freed"


def test_retained_rows_are_those_of_a_new_sequence(tiny_llama: Any) -> None:
    model = runner(tiny_llama)
    slot, other = model.allocate(), model.allocate()
    tree = InputRows(slot, [4, 5, 6, 7, 8], np.array([-1, -1, 1, 0, 2]), num_logits=0)
    for each in (slot, other):
        model.forward([InputRows(each, [1, 2, 3])])
        model.commit({each: range(3)})
    model.forward([tree])
    model.retain(slot, [1, 2])
    kept = model.forward([InputRows(slot, [9, 10], np.array([1, 0]), num_logits=2)])
    plain = torch.cat([model.forward([InputRows(other, tokens, num_logits=1)]) for tokens in ([5, 6, 9],)])
    torch.testing.assert_close(kept[:1], plain)
    model.commit({other: []})
    torch.testing.assert_close(kept[1:], model.forward([InputRows(other, [5, 10])]))


def test_an_llm_searches_with_its_draft_model(tiny_llama: Any) -> None:
    llm = LLM(copy.deepcopy(tiny_llama), "suffix", max_length=128)
    first, second = llm.beam_search([[1, 2, 3], [5]], num_beams=2, max_tokens=8)
    assert len(first.outputs) == len(second.outputs) == 2
    assert first.outputs[0].score >= first.outputs[1].score
    with pytest.raises(InvalidRequest):
        llm.beam_search([[]], num_beams=2)
    assert llm.generate([[1, 2, 3]], max_tokens=4)[0].error is None, "its slot is free again"
