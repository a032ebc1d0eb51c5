"""Scratch blocks of the KV cache, in which side paths of draft trees are computed.

The scheduler's block pool does not know the last blocks of the cache; workers have them all. Both sides
derive the same pool from the configuration, so no block id travels between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forerun.errors import ConfigurationError

MAX_SIDE_PATHS: Final = 16
"""Most side paths of all requests in one step."""

MAX_SHARE: Final = 0.25
"""Largest share of the blocks that may be scratch blocks; it matters for tiny caches only."""


@dataclass(frozen=True, slots=True)
class ScratchPool:
    """The last blocks of a KV cache with `num_cache_blocks` blocks, `blocks_per_path` for each side path."""

    num_cache_blocks: int
    block_size: int
    blocks_per_path: int
    num_paths: int

    @property
    def num_blocks(self) -> int:
        """The scratch blocks of all paths."""
        return self.num_paths * self.blocks_per_path

    @property
    def first_block(self) -> int:
        """The id of the first scratch block, which is the number of the scheduler's blocks."""
        return self.num_cache_blocks - self.num_blocks

    @classmethod
    def fit(
        cls, num_cache_blocks: int, block_size: int, *, max_draft: int, max_num_seqs: int, max_model_len: int
    ) -> ScratchPool:
        """The pool for paths of `max_draft` tokens; raises `ConfigurationError` if there is no room for one.

        The scheduler's blocks must hold a request of the maximum length, and one block is vLLM's null block.
        A path has a place in the worker's buffers, which are made for `max_num_seqs` sequences.
        """
        blocks_per_path = (max_draft + block_size - 1) // block_size + 1  # it may start at the end of a block
        num_needed = -(-max_model_len // block_size) + 1
        num_free = min(num_cache_blocks - num_needed, int(MAX_SHARE * num_cache_blocks))
        num_paths = min(MAX_SIDE_PATHS, max_num_seqs - 1, num_free // blocks_per_path)
        if num_paths < 1:
            raise ConfigurationError(
                f"draft trees need {blocks_per_path} KV-cache blocks beside a request of {max_model_len}"
                f" tokens, and room for a second sequence: got {num_cache_blocks} blocks of {block_size}"
                f" tokens and max_num_seqs={max_num_seqs}; raise them, or leave draft_trees out"
            )
        return cls(num_cache_blocks, block_size, blocks_per_path, num_paths)
