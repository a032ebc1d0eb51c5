"""Speed under load, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from forerun.plots import pyplot

_DEEP: Final = 2.5
"""Colours are deepest where something is so many doublings faster, or slower."""


def draw_load(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """A heat map of speed over plain decoding: texts down, precision and load across.

    A cell is coloured by the ratio without noise, which is its large number; the small ones are the median by
    the clock and its interval.
    """
    plt = pyplot()
    texts, dtypes, loads = (
        list(dict.fromkeys(cell[key] for cell in cells)) for key in ("text", "dtype", "concurrency")
    )
    figure, panels = plt.subplots(
        1, len(dtypes), figsize=(2.2 + 1.7 * len(dtypes) * len(loads), 1.3 + 0.75 * len(texts)), sharey=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for axes, dtype in zip(panels[0], dtypes, strict=True):
        mine = {
            (cell["text"], cell["concurrency"]): cell["over_plain"]
            for cell in cells
            if cell["dtype"] == dtype
        }
        values = [
            [mine.get((text, load), {}).get("without_noise", np.nan) for load in loads] for text in texts
        ]
        axes.imshow(np.log2(np.array(values)), cmap="RdYlGn", vmin=-_DEEP, vmax=_DEEP, aspect="auto")
        axes.set_xticks(range(len(loads)), [str(load) for load in loads])
        axes.set_yticks(range(len(texts)), texts)
        axes.set_title(dtype, loc="left", fontsize=11)
        axes.set_xlabel("requests at a time")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for (text, load), ratio in mine.items():
            place = (loads.index(load), texts.index(text))
            axes.text(place[0], place[1] - 0.12, f"{ratio['without_noise']:.2f}", ha="center", fontsize=13)
            clock = f"{ratio['median']:.2f}  [{ratio['low']:.2f}, {ratio['high']:.2f}]"
            axes.text(place[0], place[1] + 0.27, clock, ha="center", fontsize=7.5)
    figure.suptitle("Speed over plain decoding", x=0.01, ha="left", weight="bold")
    figure.savefig(path, dpi=120)
    plt.close(figure)
