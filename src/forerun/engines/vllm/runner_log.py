"""One log line with the model runner and the scheduling mode that a vLLM server uses, and its parser.

A vLLM with forerun's scheduler always logs it. The environment variable FORERUN_LOG_RUNNER=1 switches it on
in a stock vLLM that loads forerun's plug-in, so that `forerun selftest` reports the mode of the baseline.
vLLM itself logs only the V2 runner.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from typing import Any, Final

from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.runner_choice import v1_reason

VARIABLE: Final = "FORERUN_LOG_RUNNER"

_LINE: Final = "model runner %s, %s scheduling, dtype %s"
_READ_LINE: Final = re.compile(
    r"model runner:? \(?(V[12])\b[^\n]*?\b(async|sync)\w* scheduling(?:[^\n]*?dtype (?:torch\.)?(\w+))?",
    flags=re.IGNORECASE,
)
_VLLM_V2: Final = "Using V2 Model Runner"
_VLLM_CONFIG: Final = re.compile(r"\bdtype=torch\.(\w+)")

logger = logging.getLogger("vllm.forerun")


@dataclass(frozen=True, slots=True)
class RunnerMode:
    """The model runner (V1, V2), the scheduling mode (sync, async) and the dtype; None where unknown."""

    runner: str | None = None
    scheduling: str | None = None
    dtype: str | None = None

    def __str__(self) -> str:
        """Runner and mode as reports print them."""
        return f"{self.runner or 'unknown runner'}, {self.scheduling or 'unknown'} scheduling"


def log_runner(vllm_config: Any, *, always: bool = False) -> None:
    """Log the runner and the mode of a vLLM front end, always or if the variable asks for it."""
    if not always and os.environ.get(VARIABLE, "0") in ("", "0"):
        return
    is_v2 = vllm_config.use_v2_model_runner
    mode = "async" if vllm_config.scheduler_config.async_scheduling else "sync"
    reason = "" if is_v2 else f" ({v1_reason()})"
    invariant = ", invariant mode" if speculation_config(vllm_config).invariant else ""
    dtype = vllm_config.model_config.dtype
    logger.info(_LINE + "%s%s", "V2" if is_v2 else "V1", mode, dtype, invariant, reason)


def read_runner_mode(log: str) -> RunnerMode:
    """The runner and the mode in the log of a server: from our line, else from vLLM's own lines."""
    found = _READ_LINE.findall(log)
    config = _VLLM_CONFIG.search(log)
    dtype = config[1] if config else None
    if found:
        runner, mode, logged = found[-1]
        return RunnerMode(runner.upper(), mode.lower(), logged or dtype)
    if _VLLM_V2 in log:
        return RunnerMode("V2", None, dtype)
    return RunnerMode("V1" if config else None, None, dtype)
