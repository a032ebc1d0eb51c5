from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forerun.core import top_tokens as module
from forerun.core.top_tokens import top_tokens, top_tokens_on_device
from unit.drafters.naive import sabotaged

rows = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.sampled_from([1, 5, 8, 511, 512, 513, 1300])),
    elements=st.sampled_from([-np.inf, -3.0, 0.0, 0.5, 2.0, 7.25]),
)


def check(logits: np.ndarray, num: int) -> None:
    """The kernel's tokens are a stable sort's first ones, with the reference's probabilities."""
    logits[:, -1] = 1.0  # one logit is finite
    tokens, probs = top_tokens(torch.from_numpy(logits), num)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :num]
    assert (tokens == expected).all()
    _, reference = top_tokens_on_device(torch.from_numpy(logits), min(num, logits.shape[1]))
    assert np.allclose(probs, reference.numpy(), rtol=1e-5, atol=1e-30)


@given(rows, st.integers(1, 10))
def test_the_kernel_agrees_with_a_stable_sort(logits: np.ndarray, num: int) -> None:
    check(logits, num)


def test_the_check_of_the_kernel_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.zeros((2, 700), dtype=np.float32)
    check(logits, 8)

    def never(*_: object) -> bool:
        return False

    select = sabotaged(module._select, _contains=never)
    monkeypatch.setattr(module, "_top_tokens_range", sabotaged(module._top_tokens_range, _select=select))
    with pytest.raises(AssertionError):
        check(logits, 8)


def test_probabilities_of_a_large_vocabulary_are_right_to_a_hundred_thousandth() -> None:
    logits = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(1)) * 4
    tokens, probs = top_tokens(logits, 8)
    expected = logits.double().softmax(-1).gather(1, torch.from_numpy(tokens).long())
    assert np.allclose(probs, expected.numpy(), rtol=1e-5)
    _, half_probs = top_tokens(logits.bfloat16(), 8)
    expected = logits.bfloat16().double().softmax(-1).topk(8).values
    assert np.allclose(half_probs, expected.numpy(), rtol=1e-5)


def test_rows_without_a_finite_maximum_have_no_probability() -> None:
    nan, inf = float("nan"), float("inf")
    broken = torch.tensor([[0.0, nan, 1.0], [-inf, -inf, -inf], [0.0, inf, 0.0]])
    tokens, probs = top_tokens(broken, 2)
    assert ((tokens >= 0) & (tokens < 3)).all()
    assert not probs.any()
