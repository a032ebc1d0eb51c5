"""The heat map of speedups under load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from forerun.rendering.plots import Figure, new_grid

_MAX_LOG2: Final = 2.5
"""The colour scale ends at this log2 of the speedup, in both directions."""


def draw_load(cells: Sequence[dict[str, Any]]) -> Figure:
    """A heat map of the speedup: workloads down, dtype and concurrency across.

    The colour and the large number of a cell are the noise-free speedup; the small numbers are the measured
    median and its confidence interval.
    """
    texts, dtypes, loads = (
        list(dict.fromkeys(cell[key] for cell in cells)) for key in ("text", "dtype", "concurrency")
    )
    width, height = 2.2 + 1.7 * len(dtypes) * len(loads), 1.3 + 0.75 * len(texts)
    figure, panels = new_grid(width, height, 1, len(dtypes), sharey=True)
    for axes, dtype in zip(panels, dtypes, strict=True):
        speedups = {
            (cell["text"], cell["concurrency"]): cell["speedup"] for cell in cells if cell["dtype"] == dtype
        }
        values = [
            [speedups.get((text, load), {}).get("without_noise", np.nan) for load in loads] for text in texts
        ]
        axes.imshow(np.log2(np.array(values)), cmap="RdYlGn", vmin=-_MAX_LOG2, vmax=_MAX_LOG2, aspect="auto")
        axes.set_xticks(range(len(loads)), [str(load) for load in loads])
        axes.set_yticks(range(len(texts)), texts)
        axes.set_title(dtype)
        axes.set_xlabel("concurrency")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for (text, load), ratio in speedups.items():
            x, y = loads.index(load), texts.index(text)
            axes.text(x, y - 0.12, f"{ratio['without_noise']:.2f}", ha="center", fontsize=13)
            measured = f"{ratio['median']:.2f}  [{ratio['low']:.2f}, {ratio['high']:.2f}]"
            axes.text(x, y + 0.27, measured, ha="center", fontsize=7.5)
    figure.suptitle("Speedup over non-speculative decoding", x=0.01, ha="left", weight="bold")
    return figure
