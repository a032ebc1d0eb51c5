"""Batch-invariant forward passes: a row's logits depend on the tokens before it alone, bit for bit.

Kernels choose their algorithm, and with it the rounding of their results, by the number of rows. Here a
forward pass is one call of the model or several, and only with numbers of rows in which a row has the same
logits; the last call is padded. Rows of a call have no influence on one another: linear layers, norms and
activations compute each row by itself, and attention is `row_attention`. So speculation, the other requests
of a batch and the chunks of a prompt leave no trace in the logits, in any dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from logging import getLogger
from typing import Any, Final

import numpy as np
import torch

from forerun.core.row_blocks import REFERENCE_ROWS, split_into_blocks
from forerun.errors import ConfigurationError, UnsupportedModel
from forerun.models.input_rows import COMMITTED, InputRows
from forerun.models.packed_linear import gains_from_packing, pack_linear_layers
from forerun.models.packed_rows import PackedRows
from forerun.models.probe import ModelProbe
from forerun.models.row_attention import DTYPES, RowContexts, attend_rows
from forerun.models.row_independence import equal_block_sizes
from forerun.models.runner import Runner
from forerun.types import IntArray

BLOCK_SIZES: Final = (REFERENCE_ROWS, 1, 2, 4, 8, 32, 64, 128)
"""Rows of a call of the model; those are used in which rows have the logits of the reference."""

_NUM_PREFIX: Final = 3
"""Committed tokens before the rows that are compared between block sizes."""

_NUM_COMPARED: Final = 32
"""Different tokens of these rows; larger blocks repeat them."""

ALL_ROWS: Final = 0
"""transformers' `logits_to_keep` for the logits of all rows."""

_logger: Final = getLogger(__name__)


class InvariantRunner(Runner):
    """A runner that calls the model with the numbers of rows in `block_sizes`.

    The constructor compares rows in all positions of a block, beside other rows, and between block sizes: the
    outputs of every kind of layer (`row_independence`) and the logits. Block sizes that differ from the
    reference are left out; if rows of the reference influence one another, as in a model that routes rows to
    experts, it raises `UnsupportedModel`.
    """

    def __init__(
        self,
        model: Any,
        *,
        block_sizes: Sequence[int] = BLOCK_SIZES,
        num_slots: int = 16,
        max_length: int | None = None,
    ) -> None:
        if model.device.type != "cpu" or model.dtype not in DTYPES:
            raise ConfigurationError(
                f"invariant mode of the local engine needs a CPU and bfloat16 or float32; got {model.device}"
                f" and {model.dtype}"
            )
        packed = pack_linear_layers(model)
        self.block_sizes = equal_block_sizes(packed, block_sizes)
        if not self.block_sizes:
            raise _unsupported(model, block_sizes[0])
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=model.dtype)
        super().__init__(packed, num_slots=num_slots, max_length=max_length)
        self.block_sizes = self._sizes_with_equal_logits()

    def _compute(self, rows: PackedRows) -> torch.Tensor:
        contexts = RowContexts.of(rows.segments, self.max_length)
        is_wanted = np.zeros(len(rows), dtype=bool)
        is_wanted[rows.wanted] = True
        logits = []
        for own, padded in self._blocks(len(rows)):
            with self.cache.writing_to(rows.slots[padded], rows.cache_rows[padded]):
                out = self.model(
                    input_ids=self._tensor(rows.tokens[padded]),
                    position_ids=self._tensor(rows.positions[padded]),
                    attention_mask=self._no_mask,
                    past_key_values=self.cache,
                    use_cache=True,
                    logits_to_keep=ALL_ROWS if is_wanted[own].any() else 1,
                    attend_rows=partial(attend_rows, contexts.select(own)),
                )
            logits.append(out.logits[0, np.flatnonzero(is_wanted[own])])
        return torch.cat(logits)

    def _blocks(self, num_rows: int) -> Iterator[tuple[IntArray, IntArray]]:
        """The rows of each block, without and with padding."""
        for first, end, size in split_into_blocks(num_rows, self.block_sizes):
            own = np.arange(first, end)
            # The last row again as padding: it writes the same keys and values to the same place.
            yield own, np.pad(own, (0, size - len(own)), mode="edge")

    @property
    def description(self) -> str:
        """Like that of `Runner`, with the block sizes."""
        return f"{super().description} invariant {sorted(self.block_sizes)}"

    def _try_batched(self, probe: ModelProbe) -> bool:
        if not super()._try_batched(probe):
            raise UnsupportedModel(
                f"{type(self.model).__name__} does not run with forerun's attention, which invariant mode"
                f" needs{probe.fault}"
            )
        return True

    def _sizes_with_equal_logits(self) -> tuple[int, ...]:
        """The block sizes in which rows have the logits of the reference, in every position."""
        reference, *others = self.block_sizes
        prefix, tokens = np.split(
            np.linspace(1, self.vocab_size - 1, _NUM_PREFIX + _NUM_COMPARED).astype(np.int64), [_NUM_PREFIX]
        )
        tokens = tokens[: self.max_length - _NUM_PREFIX]
        slot = self.allocate()
        try:
            self.forward([InputRows(slot, prefix)])
            self.commit({slot: range(_NUM_PREFIX)})
            expected = self._sibling_logits(slot, tokens, reference)
            moved = self._sibling_logits(slot, np.roll(tokens, 1), reference)
            if not torch.equal(moved, expected.roll(1, 0)):
                raise _unsupported(self.model, reference)
            equal = [size for size in others if self._has_logits(expected, slot, tokens, size)]
        finally:
            self.free(slot)
        return reference, *equal

    def _has_logits(self, expected: torch.Tensor, slot: int, tokens: IntArray, size: int) -> bool:
        """Whether every row of a block of this size has the expected logits of its token."""
        rows = np.arange(min(size, self.max_length - _NUM_PREFIX)) % len(tokens)
        return torch.equal(self._sibling_logits(slot, tokens[rows], size), expected[rows])

    def _sibling_logits(self, slot: int, tokens: IntArray, block_size: int) -> torch.Tensor:
        """The logits after each token as the next one of a slot, in blocks of one size."""
        all_sizes, self.block_sizes = self.block_sizes, (block_size,)
        siblings = np.full(len(tokens), COMMITTED)
        logits = self.forward([InputRows(slot, tokens, siblings, num_logits=len(tokens))])
        self.truncate(slot, self.length(slot))
        self.block_sizes = all_sizes
        return logits


def make_runner(
    model: Any, *, invariant: bool | None, num_slots: int, max_length: int | None = None
) -> Runner:
    """A runner in invariant mode or an ordinary one.

    With None, the mode is on where it costs no throughput and the model supports it: in float32 on a CPU with
    MKL. There packed weights save more time in decoding than the mode costs. Where a CPU emulates bfloat16
    they save time too, but take twice the memory.
    """
    if invariant is None and model.dtype == torch.float32 and gains_from_packing(model):
        try:
            return InvariantRunner(model, num_slots=num_slots, max_length=max_length)
        except UnsupportedModel as error:
            _logger.info("invariant mode is off: %s", error)
    runner = InvariantRunner if invariant else Runner
    return runner(model, num_slots=num_slots, max_length=max_length)


def _unsupported(model: Any, num_rows: int) -> UnsupportedModel:
    return UnsupportedModel(
        f"the logits of {type(model).__name__} depend on the other rows of a forward pass even in blocks of"
        f" {num_rows} rows (with {torch.get_num_threads()} threads): invariant mode cannot run it"
    )
