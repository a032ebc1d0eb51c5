from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from forerun.core import exponential_race as race_module
from forerun.core.exponential_race import clocks, exponential_race, exponential_race_rows

ROWS = 20_000


def winners_of(p: torch.Tensor, key: int = 11) -> np.ndarray:
    return exponential_race_rows(p.expand(ROWS, -1).contiguous(), np.full(ROWS, key), np.arange(ROWS))


def test_the_winner_is_distributed_as_p() -> None:
    p = torch.softmax(torch.randn(40, generator=torch.Generator().manual_seed(0)) * 2, dim=-1)
    counts = np.bincount(winners_of(p), minlength=40)
    assert stats.chisquare(counts, p.double().numpy() / p.double().sum().item() * ROWS).pvalue > 1e-3


def test_the_distribution_test_detects_a_race_without_p() -> None:
    p = torch.softmax(torch.randn(40, generator=torch.Generator().manual_seed(0)) * 2, dim=-1)
    counts = np.bincount(winners_of((p > 0).float()), minlength=40)
    assert stats.chisquare(counts, p.double().numpy() / p.double().sum().item() * ROWS).pvalue < 1e-9


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3000), st.integers(0, 2**62), st.integers(0, 2**40), st.floats(0.1, 30))
def test_the_compiled_race_equals_its_definition(size: int, key: int, position: int, scale: float) -> None:
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(size)) * scale
    p = torch.softmax(logits, dim=-1)
    p[:, ::3] *= torch.tensor([[1.0], [0.0]])
    if not (p > 0).any(-1).all():
        return
    compiled = exponential_race_rows(p, np.full(2, key), np.full(2, position))
    times = clocks(size, key, position)
    assert compiled.tolist() == [exponential_race(row.tolist(), times) for row in p]


def test_the_torch_race_equals_the_compiled_race() -> None:
    p = torch.softmax(torch.randn(50, 5000, generator=torch.Generator().manual_seed(1)) * 3, dim=-1)
    keys, positions = np.arange(50), np.arange(50) * 7
    assert (
        race_module._race_with_torch(p, keys, positions).tolist()
        == exponential_race_rows(p, keys, positions).tolist()
    )


def test_the_winner_does_not_depend_on_the_batch() -> None:
    p = torch.softmax(torch.randn(100, 2000, generator=torch.Generator().manual_seed(2)), dim=-1)
    together = exponential_race_rows(p, np.arange(100), np.arange(100))
    alone = [exponential_race_rows(p[i : i + 1], np.array([i]), np.array([i]))[0] for i in range(100)]
    assert together.tolist() == alone


def test_sharing_clocks_couples_two_distributions() -> None:
    """Two races with the same clocks agree with probability at least (1 - TV) / (1 + TV)."""
    generator = torch.Generator().manual_seed(3)
    p = torch.softmax(torch.randn(30, generator=generator), dim=-1)
    q = torch.softmax(p.log() + torch.randn(30, generator=generator) * 0.3, dim=-1)
    distance = float((p - q).abs().sum()) / 2
    agree = (winners_of(p) == winners_of(q)).mean()
    independent = float((p * q).sum())
    assert agree > (1 - distance) / (1 + distance) - 0.01
    assert agree > 3 * independent


@pytest.mark.parametrize("row", [[0.0, 0.0], [float("nan"), float("nan")]])
def test_a_row_without_mass_has_no_winner(row: list[float]) -> None:
    p = torch.tensor([row])
    assert exponential_race_rows(p, np.array([0]), np.array([0])).tolist() == [-1]
    assert race_module._race_with_torch(p, np.array([0]), np.array([0])).tolist() == [-1]


def test_a_certain_token_always_wins() -> None:
    p = torch.zeros(4096)
    p[4095] = 1.0
    assert (winners_of(p)[:500] == 4095).all()


def test_tiny_probabilities_are_sampled_at_their_rate() -> None:
    """Tokens of probability 1e-6 win at their rate, which 16 bits of noise alone could not resolve."""
    p = torch.full((1000,), 1e-6)
    p[0] = 1 - 999e-6
    wins = sum(int((winners_of(p, key) != 0).sum()) for key in range(20))
    expected = 20 * ROWS * 999e-6
    assert abs(wins - expected) < 4 * np.sqrt(expected)
