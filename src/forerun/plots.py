"""matplotlib (the extra `plots`) with a file-only backend."""

from __future__ import annotations

from typing import Any

from forerun.errors import MissingExtra


def pyplot() -> Any:
    """matplotlib.pyplot with a backend that needs no display; raises `MissingExtra` without matplotlib."""
    try:
        import matplotlib as mpl  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    return plt
