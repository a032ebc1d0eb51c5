"""Defects for the parity matrix to find; each changes forerun's verification in this process."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

VERIFICATION = "forerun.engines.vllm.v2.verification"


def salt_noise() -> None:
    """Sample the target's tokens with the noise of drafts."""
    verification: Any = import_module(VERIFICATION)
    stock = verification.gumbel_sample

    def salted(*args: Any, **kwargs: Any) -> Any:
        return stock(*args, **{**kwargs, "is_drafting": True})

    verification.gumbel_sample = salted


def row_early() -> None:
    """Take every target token from the row before its own."""
    verification: Any = import_module(VERIFICATION)
    stock = verification.match_rows

    def early(target: torch.Tensor, *args: Any) -> Any:
        return stock(target.roll(1), *args)

    verification.match_rows = early


def keep_rejected() -> None:
    """Emit the first rejected draft token in the place of the target's."""
    verification: Any = import_module(VERIFICATION)
    stock = verification.match_rows

    def kept(target: torch.Tensor, draft: torch.Tensor, starts: torch.Tensor, *args: Any) -> Any:
        output, num_output = stock(target, draft, starts, *args)
        rows = starts[:-1].long() + num_output
        drafted = (rows < starts[1:]) & (draft[rows.clamp(max=len(draft) - 1)] >= 0)
        which = torch.nonzero(drafted)[:, 0]
        output[which, num_output[which].long() - 1] = draft[rows[which]].to(output.dtype)
        return output, num_output

    verification.match_rows = kept


SABOTAGES: dict[str, Callable[[], None]] = {
    "noise salted": salt_noise,
    "a row early": row_early,
    "a rejected token kept": keep_rejected,
}
NAMES = tuple(SABOTAGES)
