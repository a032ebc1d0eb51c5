"""Remedies for servers that fail in a self-test."""

from __future__ import annotations

import re
from typing import Final

_MEMORY: Final = (
    "free memory of the device (nvidia-smi lists its processes), or give -- --gpu-memory-utilization 0.8"
    " --max-model-len 4096"
)
_REMEDIES: Final = {
    r"out of memory|memory utilization|No available memory|available KV cache memory|signal 9": _MEMORY,
    r"start-up timeout": "give a longer --startup-timeout; the first start downloads and compiles the model",
    r"maximum (context|model) length|max_model_len": "give -- --max-model-len 1024 or more",
    r"max_num_batched_tokens": "give -- --max-model-len 4096, or a larger --max-num-batched-tokens",
    r"is not installed": "install it as the message says",
    r"not a valid model|does not exist|401|gated|offline": "give the directory of a model, or its name on the"
    " hub with access to it (hf auth login)",
}

DEFAULT: Final = "run forerun doctor, then start the server alone: forerun serve MODEL"


def remedy_for(failure: str) -> str:
    """What to do about a failure, by its message."""
    found = (text for pattern, text in _REMEDIES.items() if re.search(pattern, failure, re.IGNORECASE))
    return next(found, DEFAULT)
