"""How output relates to non-speculative decoding in a precision: the sentences of every banner and report.

A matrix product rounds a row differently when the number of rows changes, and verifying K draft tokens takes
K + 1 rows where non-speculative decoding takes one. In float32 the difference is too small to have changed a
token in our tests. In bfloat16 and float16 it decides near-ties. In invariant mode the logits of a position
do not depend on the number of rows.
"""

from __future__ import annotations

from typing import Final

_BASELINE: Final = "non-speculative decoding"
_PRECISE: Final = frozenset({"float32", "float64"})
"""Precisions in which rounding changed no token in our tests."""


def guarantee(dtype: str | None, *, invariant: bool) -> str:
    """How greedy and seeded output relates to non-speculative decoding.

    `dtype` None is a precision that is not known yet. In invariant mode the baseline runs in this mode too.
    """
    if invariant:
        return f"{_label(dtype)}, invariant mode: output identical to {_BASELINE} in this mode, bit for bit"
    if dtype in _PRECISE:
        return f"{dtype}: output identical to {_BASELINE}; {dtype} rounding changed no token in our tests"
    return (
        f"{_label(dtype)}: output can differ from {_BASELINE} from a near-tie of two logits on, because"
        " rounding depends on the number of rows in a forward pass; not in float32 or invariant mode"
    )


def unseeded_guarantee(dtype: str | None, *, invariant: bool) -> str:
    """How the distribution of output sampled without a seed relates to non-speculative decoding."""
    if invariant:
        return f"{_label(dtype)}, invariant mode: distribution of {_BASELINE} in this mode"
    return f"{_label(dtype)}: distribution of {_BASELINE}, up to rounding"


def _label(dtype: str | None) -> str:
    return dtype or "dtype chosen by the server, bfloat16 or float16 unless it is float32"
