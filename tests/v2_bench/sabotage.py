"""Defects for the parity matrix to find: within its block, each changes forerun's verification here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

VERIFICATION = "forerun.engines.vllm.v2.verification"


def replaced(name: str, change: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Within the block, the verification uses a changed version of one of its functions."""
    verification = import_module(VERIFICATION)
    return patch.object(verification, name, change(getattr(verification, name)))


def salt_noise() -> AbstractContextManager[Any]:
    """Sample the target's tokens with the noise of drafts."""

    def change(stock: Any) -> Any:
        def salted(*args: Any, **kwargs: Any) -> Any:
            return stock(*args, **{**kwargs, "is_drafting": True})

        return salted

    return replaced("gumbel_sample", change)


def row_early() -> AbstractContextManager[Any]:
    """Take every target token from the row before its own."""

    def change(stock: Any) -> Any:
        def early(target: torch.Tensor, *args: Any) -> Any:
            return stock(target.roll(1), *args)

        return early

    return replaced("match_rows", change)


def keep_rejected() -> AbstractContextManager[Any]:
    """Emit the first rejected draft token in the place of the target's."""

    def change(stock: Any) -> Any:
        def kept(target: torch.Tensor, draft: torch.Tensor, starts: torch.Tensor, *args: Any) -> Any:
            output, num_output = stock(target, draft, starts, *args)
            rows = starts[:-1].long() + num_output
            drafted = (rows < starts[1:]) & (draft[rows.clamp(max=len(draft) - 1)] >= 0)
            which = torch.nonzero(drafted)[:, 0]
            output[which, num_output[which].long() - 1] = draft[rows[which]].to(output.dtype)
            return output, num_output

        return kept

    return replaced("match_rows", change)


SABOTAGES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "noise salted": salt_noise,
    "a row early": row_early,
    "a rejected token kept": keep_rejected,
}
NAMES = tuple(SABOTAGES)
