"""Figures of the expected speedup in theory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun.core import theory
from forerun.plots import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ALPHAS = np.linspace(0.0, 0.99, 100)


def draw_theory(path: Path) -> None:
    """Figures 2 to 4 of Leviathan et al.: tokens per target run, best gamma, speedup against operations."""
    plt = pyplot()
    figure, (tokens, best, trade) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
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
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _label(axes: Axes, title: str, y: str) -> None:
    """Set title, axis labels and legend."""
    axes.set_title(title, loc="left")
    axes.set_xlabel("α, the acceptance rate")
    axes.set_ylabel(y)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
