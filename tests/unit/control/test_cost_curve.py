"""Isotonic regression and interpolation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from forerun.control.cost_curve import interpolate, interpolation_weights, isotonic_fit


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0)), min_size=1, max_size=12))
def test_the_isotonic_fit_equals_the_one_of_scipy(points: list[tuple[float, float]]) -> None:
    values, weights = np.array(points).T
    found = isotonic_fit(values.copy(), weights.copy())
    assert (np.diff(found) >= 0).all()
    assert found == pytest.approx(isotonic_regression(values, weights=weights).x)


@given(st.floats(0.0, 20.0))
def test_interpolation_weights_reproduce_the_interpolated_value_within_the_knots(rows: float) -> None:
    knots, seconds = np.array([1.0, 4.0, 8.0]), np.array([1.0, 1.3, 1.7])
    weights = interpolation_weights(rows, knots)
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ seconds == pytest.approx(interpolate(knots, seconds, min(rows, 8.0)))
