"""Requests of the parity matrix that several tests compare with the same stock engine."""

from __future__ import annotations

from typing import Any, Final

PARITY: Final[dict[str, Any]] = {
    "batches": ["mixed"],
    "num_prompts": 1,
    "num_tokens": 12,
    "scenarios": ["repeated_prompts"],
}
"""All settings in one batch of short requests, and a scenario with prefix-cache hits."""
HEADS: Final[dict[str, Any]] = {
    "settings": ["greedy", "penalties with top-k"],
    "batches": ["batched"],
    "num_prompts": 2,
    "num_tokens": 24,
}
"""Two settings that a server answers request by request."""
