"""Block tables and copies for the side paths of draft trees; nothing here synchronizes with the host.

A side path reads the full blocks of its request. From the block with the last committed token on it has
scratch blocks: before the forward pass, the tokens that are in that block already are copied into the first
of them. If the path wins, its scratch blocks are copied back over the request's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from forerun.engines.vllm.scratch_pool import ScratchPool


@dataclass(frozen=True, slots=True, eq=False)
class PathBlocks:
    """The blocks of the side paths of a step, `[paths, blocks_per_path]`.

    `start` is the position of each path's first row, and `first` the block of its request with that position.
    `own` are the request's blocks from there on, of which some may not be allocated.
    """

    start: torch.Tensor
    first: torch.Tensor
    own: torch.Tensor
    scratch: torch.Tensor


def assign_scratch_blocks(block_table: torch.Tensor, start: torch.Tensor, pool: ScratchPool) -> PathBlocks:
    """Put scratch blocks into the block tables of side paths, in place.

    `block_table` has a row for each path, as vLLM gathered it for the path's request.
    """
    num_paths, width = block_table.shape
    first = start.long() // pool.block_size
    scratch = scratch_block_ids(num_paths, pool, block_table.device)
    columns = (first[:, None] + torch.arange(pool.blocks_per_path, device=first.device)).clamp(max=width - 1)
    own = block_table.gather(1, columns).long()
    offset = torch.arange(width, device=first.device) - first[:, None]
    is_scratch = (offset >= 0) & (offset < pool.blocks_per_path)
    replaced = scratch.gather(1, offset.clamp(0, pool.blocks_per_path - 1)).to(block_table.dtype)
    block_table.copy_(torch.where(is_scratch, replaced, block_table))
    return PathBlocks(start.long(), first, own, scratch)


def scratch_block_ids(num_paths: int, pool: ScratchPool, device: torch.device) -> torch.Tensor:
    """The scratch blocks of the first `num_paths` paths."""
    ids = torch.arange(num_paths * pool.blocks_per_path, device=device) + pool.first_block
    return ids.view(num_paths, pool.blocks_per_path)


def slots_of_rows(
    block_table: torch.Tensor, path_of_row: torch.Tensor, positions: torch.Tensor, block_size: int
) -> torch.Tensor:
    """The KV-cache slot of each row of the side paths, by its position."""
    return block_table[path_of_row, positions // block_size].long() * block_size + positions % block_size


def copies_in(blocks: PathBlocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target of the copies before the forward pass: the partly filled block of every path."""
    return blocks.own[:, 0], blocks.scratch[:, 0]


def copies_back(
    blocks: PathBlocks, winner: torch.Tensor, num_accepted: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target of the copies after verification, for every request with side paths.

    `winner` is the side path of a request that won, or -1. Blocks that need no copy are copied to themselves:
    those of requests whose own chain won, and those behind the last accepted token, which the request may not
    have. So the number of copies does not depend on values.
    """
    path = winner.clamp(min=0)
    depth = torch.arange(blocks.scratch.shape[1], device=path.device)
    last = (blocks.start[path] + num_accepted) // block_size
    is_needed = (winner >= 0)[:, None] & (blocks.first[path][:, None] + depth <= last[:, None])
    source = blocks.scratch[path]
    return source.flatten(), torch.where(is_needed, blocks.own[path], source).flatten()


class BlockCopier:
    """Copies whole blocks of the KV cache, of all layers, as vLLM does for copy-on-write."""

    def __init__(self, kv_caches: Iterable[torch.Tensor], num_blocks: int) -> None:
        self._views = list(block_views(kv_caches, num_blocks))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return sum(view[0].numel() * view.element_size() for view in self._views)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy blocks; all sources are read before the first target is written, layer by layer."""
        for view in self._views:
            view[target] = view[source]


def block_views(kv_caches: Iterable[torch.Tensor], num_blocks: int) -> Iterable[torch.Tensor]:
    """Views of the KV-cache tensors with one row per block, without repeating aliases.

    Restates vLLM's `copy_kv_cache_blocks_inplace`, which takes block ids from the host. An allocation that
    several layers share block by block is one view.
    """
    seen: set[Any] = set()
    for cache in kv_caches:
        if (key := (cache.device, cache.data_ptr())) in seen:
            continue
        seen.add(key)
        per_block, remainder = divmod(cache.shape[0], num_blocks)
        if remainder:
            raise ValueError(
                f"got {cache.shape[0]} kernel blocks for {num_blocks} blocks; expected a multiple"
            )
        storage = cache.untyped_storage()
        if storage.nbytes() != num_blocks * cache.stride(0) * cache.element_size() * per_block:
            folded: torch.Tensor = cache.unflatten(0, (num_blocks, per_block))  # type: ignore[no-untyped-call]
            yield folded
        elif (shared := (cache.device, storage.data_ptr(), "storage")) not in seen:
            seen.add(shared)
            blocks = torch.empty(0, dtype=torch.uint8, device=cache.device)
            blocks.set_(storage)
            yield blocks.view(num_blocks, -1)
