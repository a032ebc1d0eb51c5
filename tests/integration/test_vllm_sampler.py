"""The target distribution equals that of vLLM's sampler, on random logits with all settings at once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory
from forerun.core.logits_warper import probabilities
from forerun.types import SamplingParams

pytestmark = pytest.mark.filterwarnings("default")
pytest.importorskip("vllm", reason="needs vLLM: make setup")

VOCAB = 2_000
CONFIG = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=64))


def of_vllm(
    logits: torch.Tensor, params: list[SamplingParams], histories: list[TokenHistory]
) -> torch.Tensor:
    """The distribution that vLLM's sampler samples from, by its own modules in its own order."""
    from vllm import SamplingParams as TheirParams
    from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
    from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor, MinPLogitsProcessor
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
    from vllm.v1.sample.sampler import Sampler

    theirs = [TheirParams(min_p=each.min_p, logit_bias=dict(each.logit_bias) or None) for each in params]
    added: list[Any] = [(i, each, [], []) for i, each in enumerate(theirs)]
    update = BatchUpdate(batch_size=len(params), removed=[], added=added, moved=[])
    bias = LogitBiasLogitsProcessor(CONFIG, torch.device("cpu"), False)
    min_p = MinPLogitsProcessor(CONFIG, torch.device("cpu"), False)
    bias.update_state(update)
    min_p.update_state(update)

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(each, name) for each in params], dtype=torch.float32)

    longest = max(len(history.prompt) for history in histories)
    prompts = [[*history.prompt, *[VOCAB] * (longest - len(history.prompt))] for history in histories]
    forbidden = torch.zeros(len(params), VOCAB, dtype=torch.bool)
    for i, each in enumerate(params):
        if each.allowed_token_ids is not None:
            forbidden[i] = True
            forbidden[i, list(each.allowed_token_ids)] = False
    metadata = SamplingMetadata(
        temperature=column("temperature"),
        all_greedy=False,
        all_random=True,
        top_p=column("top_p"),
        top_k=torch.tensor([each.top_k or VOCAB for each in params]),
        generators={},
        max_num_logprobs=None,
        no_penalties=False,
        prompt_token_ids=torch.tensor(prompts),
        frequency_penalties=column("frequency_penalty"),
        presence_penalties=column("presence_penalty"),
        repetition_penalties=column("repetition_penalty"),
        output_token_ids=[list(history.output) for history in histories],
        allowed_token_ids_mask=forbidden if forbidden.any() else None,
        bad_words_token_ids={
            i: [list(w) for w in each.bad_words] for i, each in enumerate(params) if each.bad_words
        },
        logitsprocs=LogitsProcessors([bias, min_p]),
    )
    sampler = Sampler()
    warped = sampler.apply_logits_processors(logits.clone(), metadata, predict_bonus_token=False)
    warped = sampler.apply_temperature(warped, metadata.temperature, metadata.all_random)
    for processor in metadata.logitsprocs.argmax_invariant:
        warped = processor.apply(warped)
    result: torch.Tensor = apply_top_k_top_p(warped, metadata.top_k, metadata.top_p).softmax(-1)
    return result


def assert_same_distribution(
    ours: torch.Tensor, theirs: torch.Tensor, params: list[SamplingParams], before: torch.Tensor
) -> int:
    """Assert equal support and probabilities within 1e-6; returns the number of rows with an excused token.

    A token is excused if the running sum equals 1 - top_p within rounding there: vLLM sums rows in sorted
    order and forerun does not, so both results are correct in float32. At most one token per row may differ.
    `before` is p without top-p.
    """
    excused = 0
    for row in range(len(ours)):
        if ((ours[row] > 0) == (theirs[row] > 0)).all():
            torch.testing.assert_close(ours[row], theirs[row], rtol=0, atol=1e-6)
            continue
        differing = torch.nonzero((ours[row] > 0) != (theirs[row] > 0))[:, 0]
        assert len(differing) == 1
        assert abs(_mass_above(differing[0], ours[row], theirs[row], before[row]) - params[row].top_p) < 1e-6
        excused += 1
    return excused


def _mass_above(token: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor, before: torch.Tensor) -> float:
    """The probability, before top-p, of the tokens that both keep."""
    both = (ours > 0) & (theirs > 0)
    assert not both[token]
    return float(before[both].double().sum())


def random_params(dice: np.random.Generator) -> SamplingParams:
    def maybe(value: Any, otherwise: Any) -> Any:
        return value if dice.random() < 0.5 else otherwise

    tokens = tuple(int(x) for x in dice.choice(VOCAB, 900, replace=False))
    return SamplingParams(
        temperature=float(maybe(dice.uniform(0.3, 1.5), 1.0)),
        top_k=int(maybe(dice.integers(1, 300), 0)),
        top_p=float(maybe(dice.uniform(0.3, 0.99), 1.0)),
        min_p=float(maybe(dice.uniform(0.001, 0.2), 0.0)),
        repetition_penalty=float(maybe(dice.uniform(0.7, 1.6), 1.0)),
        presence_penalty=float(maybe(dice.uniform(-1, 1), 0.0)),
        frequency_penalty=float(maybe(dice.uniform(-1, 1), 0.0)),
        logit_bias=maybe(
            {int(x): float(dice.uniform(-5, 5)) for x in dice.choice(VOCAB, 5, replace=False)}, {}
        ),
        allowed_token_ids=maybe(tokens, None),
        bad_words=maybe(((3,), (5, 6), (7, 8, 9)), ()),
    )


def without_top_p(
    logits: torch.Tensor, params: list[SamplingParams], histories: list[TokenHistory]
) -> torch.Tensor:
    settings = BatchSampling.of([replace(each, top_p=1.0) for each in params])
    return probabilities(logits, settings, [RowContext(history) for history in histories])


@pytest.mark.parametrize("seed", range(8))
def test_all_settings_together_give_vllms_distribution(seed: int) -> None:
    dice = np.random.default_rng(seed)
    params = [random_params(dice) for _ in range(48)]
    histories = [
        TokenHistory(dice.integers(0, VOCAB, 30).tolist(), [*dice.integers(0, VOCAB, 20).tolist(), *tail])
        for _, tail in zip(params, [[5], [7, 8], [1], []] * 12, strict=True)
    ]
    logits = torch.randn(48, VOCAB, generator=torch.Generator().manual_seed(seed)) * float(
        dice.uniform(0.5, 4)
    )
    ours = probabilities(logits, BatchSampling.of(params), [RowContext(history) for history in histories])
    before = without_top_p(logits, params, histories)
    assert assert_same_distribution(ours, of_vllm(logits, params, histories), params, before) <= 2


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0.6},
        {"top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.8},
        {"frequency_penalty": 0.5},
        {"logit_bias": {3: 4.0, 8: -100.0}},
        {"allowed_token_ids": (1, 5, 9, 77)},
        {"bad_words": ((4,), (2, 3))},
    ],
)
def test_each_setting_alone_gives_vllms_distribution(setting: dict[str, Any]) -> None:
    params = [SamplingParams(**setting)] * 16
    histories = [TokenHistory([1, 2, 3, 3], [5, 5, 2])] * 16
    logits = torch.randn(16, VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    ours = probabilities(logits, BatchSampling.of(params), [RowContext(history) for history in histories])
    before = without_top_p(logits, params, histories)
    assert assert_same_distribution(ours, of_vllm(logits, params, histories), params, before) == 0


def test_the_comparison_can_fail() -> None:
    params = [SamplingParams(top_p=0.9)] * 4
    histories = [TokenHistory([1], [2])] * 4
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    other = probabilities(logits, BatchSampling.of([SamplingParams(top_p=0.85)] * 4))
    with pytest.raises(AssertionError):
        assert_same_distribution(
            other, of_vllm(logits, params, histories), params, torch.softmax(logits, dim=-1)
        )
