from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory
from forerun.core.logits_warper import probabilities
from forerun.core.nucleus import apply_top_p, top_p_by_sorting
from forerun.errors import InvalidSampling
from forerun.types import SamplingParams


def p_of(
    logits: list[float] | torch.Tensor, context: RowContext | None = None, **settings_: object
) -> torch.Tensor:
    row = torch.as_tensor(logits, dtype=torch.float32)[None]
    params = SamplingParams(**settings_)  # type: ignore[arg-type]
    return probabilities(row, BatchSampling.of([params]), [context] if context else ())[0]


def test_greedy_is_a_point_mass_on_the_first_largest() -> None:
    assert p_of([1.0, 3.0, 3.0], temperature=0.0).tolist() == [0.0, 1.0, 0.0]


def test_every_row_uses_its_own_settings() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(4, 1)
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=1),
        SamplingParams(),
    ]
    p = probabilities(logits, BatchSampling.of(params))
    assert p[0].tolist() == [0, 0, 1]
    torch.testing.assert_close(p[1], torch.softmax(logits[1] / 0.5, dim=-1))
    assert p[2].tolist() == [0, 0, 1]
    torch.testing.assert_close(p[3], torch.softmax(logits[3], dim=-1))


def test_greedy_rows_of_a_mixed_batch_take_the_argmax_of_the_logits() -> None:
    """The softmax rounds these two logits to a tie."""
    logits = torch.tensor([[1e-9, 2e-9], [0.0, 0.0]])
    p = probabilities(logits, BatchSampling.of([SamplingParams(temperature=0), SamplingParams()]))
    assert p[0].tolist() == [0.0, 1.0]


def test_token_ids_beyond_the_vocabulary_in_a_prompt_are_skipped() -> None:
    context = RowContext(TokenHistory(prompt=[0, 10**6], output=[1, 10**6]))
    p = p_of([1.0, 1.0, 1.0], context, repetition_penalty=2.0, frequency_penalty=0.5)
    torch.testing.assert_close(p, torch.softmax(torch.tensor([0.5, 0.0, 1.0]), dim=-1))


def test_the_logits_are_not_modified() -> None:
    logits = torch.randn(3, 50)
    before = logits.clone()
    params = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01, logit_bias={1: 2.0})
    probabilities(logits, BatchSampling.of([params] * 3))
    assert torch.equal(logits, before)


def test_top_k_keeps_ties_with_the_kth_largest() -> None:
    assert (p_of([2.0, 2.0, 2.0, 1.0], top_k=2) > 0).tolist() == [True, True, True, False]


def test_min_p_is_relative_to_the_most_likely() -> None:
    logits = torch.log(torch.tensor([0.6, 0.29, 0.11]))
    assert (p_of(logits, min_p=0.3) > 0).tolist() == [True, True, False]


def test_only_allowed_tokens_have_probability() -> None:
    assert (p_of([9.0, 1.0, 1.0], allowed_token_ids=(1, 2)) > 0).tolist() == [False, True, True]


def test_logit_bias_changes_the_argmax() -> None:
    assert p_of([3.0, 1.0], temperature=0.0, logit_bias={1: 5.0}).tolist() == [0.0, 1.0]


def test_a_bad_word_is_forbidden_only_where_it_would_be_completed() -> None:
    words = ((3,), (1, 2))
    history = TokenHistory(prompt=[1], output=[0, 1])
    assert (p_of([0.0] * 4, RowContext(history), bad_words=words) > 0).tolist() == [True, True, False, False]
    assert (p_of([0.0] * 4, RowContext(history, [0]), bad_words=words) > 0).tolist() == [
        True,
        True,
        True,
        False,
    ]
    assert (p_of([0.0] * 4, RowContext(TokenHistory([1]), []), bad_words=words) > 0).tolist() == [
        True,
        True,
        True,
        False,
    ]


def test_penalties_count_draft_tokens_before_the_position() -> None:
    history = TokenHistory(prompt=[0], output=[1])
    without = p_of([0.0] * 4, RowContext(history), frequency_penalty=1.0)
    with_draft = p_of([0.0] * 4, RowContext(history, [2, 1]), frequency_penalty=1.0)
    torch.testing.assert_close(without, torch.softmax(torch.tensor([0.0, -1.0, 0.0, 0.0]), dim=-1))
    torch.testing.assert_close(with_draft, torch.softmax(torch.tensor([0.0, -2.0, -1.0, 0.0]), dim=-1))


def test_the_repetition_penalty_covers_the_prompt_and_presence_does_not() -> None:
    context = RowContext(TokenHistory(prompt=[0], output=[1]))
    repetition = p_of([1.0, 1.0, 1.0], context, repetition_penalty=2.0)
    presence = p_of([1.0, 1.0, 1.0], context, presence_penalty=1.0)
    torch.testing.assert_close(repetition, torch.softmax(torch.tensor([0.5, 0.5, 1.0]), dim=-1))
    torch.testing.assert_close(presence, torch.softmax(torch.tensor([1.0, 0.0, 1.0]), dim=-1))


@pytest.mark.parametrize(
    "setting", [{"logit_bias": {4: 1.0}}, {"allowed_token_ids": (0, -1)}, {"bad_words": ((1, 9),)}]
)
def test_settings_with_token_ids_outside_the_vocabulary_raise(setting: dict[str, object]) -> None:
    with pytest.raises(InvalidSampling, match=f"{next(iter(setting))} .*the vocabulary has 4"):
        p_of([0.0] * 4, None, **setting)


EXTREMES = st.sampled_from([-np.inf, -3e38, -1e4, -1.0, 0.0, 0.0, 1e-30, 1.0, 80.0, 1e4, 3e38])


@settings(deadline=None, max_examples=300)
@given(
    st.lists(EXTREMES, min_size=2, max_size=12),
    st.sampled_from([0.0, 1e-3, 0.7, 1.0, 5.0, 100.0]),
    st.integers(0, 13),
    st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_p_is_a_distribution_whatever_the_logits(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    if max(logits) == -np.inf:
        logits[0] = 0.0
    if temperature and abs(max(logits)) / temperature > 3e38:
        temperature = 1.0  # beyond float32; verification then raises
    p = p_of(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert torch.isfinite(p).all()
    assert (p >= 0).all()
    assert abs(float(p.sum()) - 1) < 1e-5
    assert (p[torch.tensor(logits) == -np.inf] == 0).all()


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 4000),
    st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.99, 0.9999]),
    st.sampled_from([0.0, 0.5, 3.0, 20.0]),
)
def test_compiled_top_p_equals_the_sorting_reference(size: int, top_p: float, scale: float) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(size)) * scale
    p = torch.softmax(logits.round(decimals=1), dim=-1)
    compiled = p.clone()
    apply_top_p(compiled, np.full(3, top_p))
    cut = np.full(3, np.float32(1) - np.float32(top_p), dtype=np.float32)
    reference = top_p_by_sorting(p.clone(), torch.from_numpy(cut))
    assert ((compiled > 0) == (reference > 0)).all()
    torch.testing.assert_close(compiled, reference, rtol=1e-6, atol=0)


def test_top_p_keeps_at_least_one_token() -> None:
    p = torch.full((1, 100), 0.01)
    apply_top_p(p, np.array([1e-9]))
    assert (p > 0).sum() == 1


@pytest.mark.parametrize("size", [16, 1_001, 49_157])
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.7, top_k=50, top_p=0.9, min_p=0.01)]
)
def test_p_of_a_row_is_bitwise_equal_in_any_batch(size: int, params: SamplingParams) -> None:
    """Seeded output is identical to non-speculative decoding only if p does not depend on the batch."""
    logits = torch.randn(37, size, generator=torch.Generator().manual_seed(size)) * 3
    together = probabilities(logits, BatchSampling.of([params] * 37))
    for row in (0, 1, 17, 36):
        assert torch.equal(probabilities(logits[row : row + 1], BatchSampling.of([params]))[0], together[row])
        assert torch.equal(
            probabilities(logits[row : row + 1].clone(), BatchSampling.of([params]))[0], together[row]
        )
