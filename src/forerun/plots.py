"""matplotlib (the extra `plots`), for whoever draws to a file."""

from __future__ import annotations

from typing import Any

from forerun.errors import MissingExtra


def pyplot() -> Any:
    """matplotlib without a screen, or a sentence that says how to get it."""
    try:
        import matplotlib as mpl  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    return plt
