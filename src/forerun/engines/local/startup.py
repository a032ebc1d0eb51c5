"""One-time work of a first run, logged: compiling kernels, and profiling step costs.

Each begins and ends with a record at INFO; its progress is logged at DEBUG.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from forerun.control.step_cost import StepCost
from forerun.core.jit import on_compile

logger: Final = logging.getLogger(__name__)


@contextmanager
def log_compilation() -> Iterator[None]:
    """Log the kernels of forerun that are compiled in this block; where all are cached nothing is logged."""
    names: list[str] = []

    def notify(name: str) -> None:
        if not name.startswith("forerun."):
            return
        if not names:
            logger.info("compiling kernels for this machine; later runs load them from numba's cache")
        names.append(name)
        logger.debug("compiling kernel %d: %s", len(names), name.removeprefix("forerun."))

    with on_compile(notify):
        yield
    if names:
        logger.info("compiled %d kernel%s", len(names), "" if len(names) == 1 else "s")


def profile_step_cost(seconds: Callable[[int], float], max_rows: int) -> StepCost:
    """Measure the step-cost curve up to `max_rows` rows; `seconds` times one forward pass of that many."""
    began = time.perf_counter()
    num_forward_passes = 0

    def timed(rows: int) -> float:
        nonlocal num_forward_passes
        num_forward_passes += 1
        logger.debug("profiling step costs: forward pass %d, %d rows", num_forward_passes, rows)
        return seconds(rows)

    logger.info("profiling step costs of the model (once per model, machine and batch size)")
    cost = StepCost.profile(timed, max_rows)
    logger.info(
        "profiled step costs: %d forward passes of up to %d rows in %.1f s",
        num_forward_passes,
        int(cost.rows[-1]),
        time.perf_counter() - began,
    )
    return cost
