"""Tokens that vLLM's KV cache has for the target model, but not for the draft model, which skips steps."""

from __future__ import annotations

from typing import Any, Final

MAX_BLOCKS: Final = 1 << 16
"""Incomplete blocks that are remembered; a forgotten one lowers the acceptance of requests that reuse it."""


class DraftKVCache:
    """Tracks which requests the draft model can draft for: those whose tokens are all in its KV cache.

    Both models share vLLM's block tables. A step without the draft model leaves its tokens out, and through
    the prefix cache such blocks reach other requests. A block is known by its hash, as in the prefix cache.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._num_complete: dict[str, int | None] = {}
        self._incomplete_blocks: dict[Any, None] = {}

    def start_step(self, request: Any, num_computed: int) -> None:
        """Note a request before a step; the cached tokens of a new one may be incomplete."""
        if request.request_id in self._num_complete:
            return
        cached = request.block_hashes[: num_computed // self.block_size]
        complete = next((i for i, block in enumerate(cached) if block in self._incomplete_blocks), None)
        self._num_complete[request.request_id] = None if complete is None else complete * self.block_size

    def skip_step(self, request_id: str, num_computed: int) -> None:
        """Note that the draft model skips a step of a request, which had `num_computed` tokens before it."""
        complete = self._num_complete[request_id]
        self._num_complete[request_id] = num_computed if complete is None else min(complete, num_computed)

    def has_all(self, request_id: str) -> bool:
        """Whether the draft model's KV cache has all tokens of a request."""
        return self._num_complete[request_id] is None

    def forget(self, request: Any) -> None:
        """Drop a finished request; the prefix cache keeps its blocks."""
        complete = self._num_complete.pop(request.request_id, None)
        if complete is None:
            return
        for block in request.block_hashes[complete // self.block_size :]:
            self._incomplete_blocks.pop(block, None)
            self._incomplete_blocks[block] = None
        while len(self._incomplete_blocks) > MAX_BLOCKS:
            del self._incomplete_blocks[next(iter(self._incomplete_blocks))]
