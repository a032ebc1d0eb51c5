"""Defects for the parity matrix to find: within its block, each changes forerun's verification here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

VERIFICATION = "forerun.engines.vllm.v2.verification"
SCRATCH_BLOCKS = "forerun.engines.vllm.v2.scratch_blocks"


def replaced(
    name: str, change: Callable[[Any], Any], path: str = VERIFICATION
) -> AbstractContextManager[Any]:
    """Within the block, a module, by default the verification, has a changed version of a function."""
    module = import_module(path)
    return patch.object(module, name, change(getattr(module, name)))


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


def copy_nothing_back() -> AbstractContextManager[Any]:
    """Leave the KV cache of winning side paths in their scratch blocks."""

    def change(stock: Any) -> Any:
        def to_themselves(*args: Any) -> Any:
            source, _ = stock(*args)
            return source, source

        return to_themselves

    return replaced("copies_back", change, SCRATCH_BLOCKS)


def keep_stale_block() -> AbstractContextManager[Any]:
    """Leave in the first scratch block of a path what earlier paths wrote there."""

    def change(stock: Any) -> Any:
        def to_themselves(*args: Any) -> Any:
            _, target = stock(*args)
            return target, target

        return to_themselves

    return replaced("copies_in", change, SCRATCH_BLOCKS)


def move_positions() -> AbstractContextManager[Any]:
    """Compute side paths one position late."""

    def change(stock: Any) -> Any:
        def late(table: torch.Tensor, path_of_row: torch.Tensor, positions: torch.Tensor, *args: Any) -> Any:
            return stock(table, path_of_row, positions.add_(1), *args)

        return late

    return replaced("slots_of_rows", change, SCRATCH_BLOCKS)


def share_scratch_blocks() -> AbstractContextManager[Any]:
    """Give all paths of a step the scratch blocks of the first one."""

    def change(stock: Any) -> Any:
        def shared(num_paths: int, *args: Any) -> Any:
            return stock(num_paths, *args)[:1].expand(num_paths, -1).contiguous()

        return shared

    return replaced("scratch_block_ids", change, SCRATCH_BLOCKS)


SABOTAGES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "noise salted": salt_noise,
    "a row early": row_early,
    "a rejected token kept": keep_rejected,
}
TREE_SABOTAGES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing copied back": copy_nothing_back,
    "a stale block": keep_stale_block,
    "a position late": move_positions,
    "scratch blocks shared": share_scratch_blocks,
}
"""Defects of draft trees."""
ALL_SABOTAGES = SABOTAGES | TREE_SABOTAGES
NAMES = tuple(ALL_SABOTAGES)
