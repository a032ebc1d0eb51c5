"""The static table of a served model: built in the background of a server, used once it is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from forerun.config import BUILD_VARIABLE, SpeculationConfig
from forerun.drafters import suffix
from forerun.drafters.static_table import StaticTable
from forerun.drafters.static_table_cache import load_static_table, num_weight_bytes, table_path
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.guarded_drafter import GuardedDrafter
from forerun.engines.vllm.runner_choice import is_cpu_platform
from forerun.engines.vllm.stats import logger
from forerun.errors import ConfigurationError

CHECK_SECONDS: Final = 10.0
"""Time between two checks whether the table is complete."""

_MEMORY_SHARE: Final = 0.25
"""Share of the available memory that a background build may take."""


class StaticTableWatch:
    """Loads the table of a model once: at the start, or when its build has ended."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.model = model
        self.clock = clock
        self._file = table_path(model)
        self._next_check = -1.0

    def take(self) -> StaticTable | None:
        """The table, once; None while there is none."""
        now = self.clock()
        if self._file is None or now < self._next_check:
            return None
        self._next_check = now + CHECK_SECONDS
        if not self._file.exists():
            return None
        self._file = None
        try:
            table = load_static_table(self.model)
        except ConfigurationError as error:
            logger.warning("Static table: %s; drafting without it", error)
            return None
        if table is not None:
            logger.info("Static table: drafting with the likeliest successors of %d tokens", len(table))
        return table


def use_static_table(drafters: Mapping[str, GuardedDrafter], table: StaticTable) -> None:
    """Let the suffix drafter among these use a table from its next proposal on."""
    for each in drafters.values():
        if isinstance(each.drafter, SuffixDrafter):
            each.drafter.static_table = table


def start_build(model: str, config: SpeculationConfig, environment: Mapping[str, str] = os.environ) -> str:
    """Start to build a missing table in a background process; returns the state of the table in words.

    The process takes one thread and only CPU time that is otherwise idle, and ends with this one. It loads
    the model a second time, so none is started for models on GPUs and for those that do not fit beside the
    server.
    """
    if suffix.NAME not in config.names or not config.max_draft:
        return "not used"
    file = table_path(model)
    by_hand = f"forerun static-table {model}"
    if file is None:
        return f"none yet; build it with: {by_hand}"
    if file.exists():
        return "in use"
    if environment.get(BUILD_VARIABLE) == "0" or not is_cpu_platform() or not _fits(Path(model)):
        return f"none; build it with: {by_hand}"
    subprocess.Popen(  # noqa: S603  (the server's process, which this one becomes, owns it)
        [sys.executable, "-m", "forerun", "static-table", model, "--device", "cpu", "--background"],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    return "being built from idle CPU time; requests are served meanwhile"


def _fits(directory: Path) -> bool:
    """Whether the weights of a model, in float32 at most, take a small share of the available memory."""
    weights = num_weight_bytes(directory)
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known on this system
        return False
    return 0 < 2 * weights < _MEMORY_SHARE * available
