"""The sentences on exactness promise identical output only where it holds."""

from __future__ import annotations

import pytest

from forerun.exactness import guarantee, unseeded_guarantee

DTYPES = ["float32", "float64", "bfloat16", "float16", None]


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_identical_output_is_promised_in_float32_and_in_invariant_mode_only(
    dtype: str | None, invariant: bool
) -> None:
    sentence = guarantee(dtype, invariant=invariant)
    is_exact = invariant or dtype in {"float32", "float64"}
    assert ("identical" in sentence) == is_exact
    assert ("near-tie" in sentence) == (not is_exact)
    assert ("bit for bit" in sentence) == invariant
    assert (dtype or "float16") in sentence


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "Q4_1"])
def test_identical_output_is_not_promised_in_an_unknown_precision(dtype: str) -> None:
    assert "near-tie" in guarantee(dtype, invariant=False)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_unseeded_output_is_promised_a_distribution_and_no_tokens(dtype: str | None, invariant: bool) -> None:
    sentence = unseeded_guarantee(dtype, invariant=invariant)
    assert "distribution" in sentence
    assert "identical" not in sentence
    assert ("rounding" in sentence) == (not invariant)
