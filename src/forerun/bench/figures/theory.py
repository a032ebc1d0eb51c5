"""Figures of the expected speedup in theory."""

from __future__ import annotations

import numpy as np

from forerun.core import theory
from forerun.rendering.plots import Axes, Figure, new_grid

_ALPHAS = np.linspace(0.0, 0.99, 100)


def draw_theory() -> Figure:
    """Figures 2 to 4 of Leviathan et al.: tokens per target run, best gamma, speedup against operations."""
    figure, (tokens, best, trade) = new_grid(15, 4.6, 1, 3)
    for gamma in (1, 3, 5, 7, 10):
        tokens.plot(_ALPHAS, [theory.expected_tokens(a, gamma) for a in _ALPHAS], label=f"γ = {gamma}")
    _label(tokens, "Tokens per target forward pass", "tokens")
    for c in (0.01, 0.02, 0.05, 0.1):
        best.step(_ALPHAS, [theory.best_gamma(a, c) for a in _ALPHAS], where="mid", label=f"c = {c:g}")
    _label(best, "Best draft length", "γ")
    best.set_ylim(0, 40)
    for gamma, colour in zip((3, 5, 7, 10), ("C0", "C1", "C2", "C3"), strict=True):
        trade.plot(_ALPHAS, [theory.speedup(a, gamma) for a in _ALPHAS], color=colour, label=f"γ = {gamma}")
        trade.plot(_ALPHAS, [theory.operations(a, gamma) for a in _ALPHAS], color=colour, linestyle="--")
    _label(trade, "Speedup (solid) and operations (dashed), c = 0", "factor")
    return figure


def _label(axes: Axes, title: str, y: str) -> None:
    """Set title, axis labels and legend."""
    axes.set_title(title)
    axes.set_xlabel("α, the acceptance rate")
    axes.set_ylabel(y)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True)
    axes.legend()
