"""Batch-invariant forward passes: a row's logits depend on the tokens before it alone, bit for bit.

Kernels choose their algorithm, and with it the rounding of their results, by the number of rows. Here every
call of the model has the same number of rows, its block. A forward pass of more rows is several calls, one
after the other; the last block is padded. Rows of a block have no influence on one another: linear layers,
norms and activations compute each row by itself, and attention is `row_attention`. So speculation, the other
requests of a batch and the chunks of a prompt leave no trace in the logits, in any dtype.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import torch

from forerun.errors import ConfigurationError, UnsupportedModel
from forerun.models.input_rows import COMMITTED, InputRows
from forerun.models.packed_rows import PackedRows
from forerun.models.probe import ModelProbe
from forerun.models.row_attention import DTYPES, RowContexts, attend_rows
from forerun.models.runner import Runner

BLOCK_ROWS: Final = 16
"""Rows of a block, a constant so that all processes agree on every bit. Measured on a CPU without AMX in
float32, 8 and 16 rows take the same time and 32 a quarter more; an AMX tile has 16 rows.
"""

ALL_ROWS: Final = 0
"""transformers' `logits_to_keep` for the logits of all rows."""


class InvariantRunner(Runner):
    """A runner that calls the model with `block_rows` rows each time.

    The constructor checks that the logits of a row do not depend on its place in the block or on the other
    rows, and raises `UnsupportedModel` if they do, as in a model that routes rows to experts.
    """

    block_rows: int

    def __init__(
        self, model: Any, *, block_rows: int = BLOCK_ROWS, num_slots: int = 16, max_length: int | None = None
    ) -> None:
        if model.device.type != "cpu" or model.dtype not in DTYPES:
            raise ConfigurationError(
                f"invariant mode of the local engine needs a CPU and bfloat16 or float32; got {model.device}"
                f" and {model.dtype}"
            )
        self.block_rows = block_rows
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=model.dtype)
        super().__init__(model, num_slots=num_slots, max_length=max_length)
        self._check_rows_are_independent()

    def _compute(self, rows: PackedRows) -> torch.Tensor:
        contexts = RowContexts.of(rows.segments, self.max_length)
        is_wanted = np.zeros(len(rows), dtype=bool)
        is_wanted[rows.wanted] = True
        logits = []
        for first in range(0, len(rows), self.block_rows):
            own = np.arange(first, min(first + self.block_rows, len(rows)))
            # The last row again as padding: it writes the same keys and values to the same place.
            padded = np.pad(own, (0, self.block_rows - len(own)), mode="edge")
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

    @property
    def description(self) -> str:
        """Like that of `Runner`, with the size of the block."""
        return f"{super().description} invariant {self.block_rows}"

    def _try_batched(self, probe: ModelProbe) -> bool:
        if not super()._try_batched(probe):
            raise UnsupportedModel(
                f"{type(self.model).__name__} does not run with forerun's attention, which invariant mode"
                f" needs{probe.fault}"
            )
        return True

    def _check_rows_are_independent(self) -> None:
        """Raise unless a row has the same logits in every place of a block and beside any other rows."""
        slot = self.allocate()
        try:
            token, *others = np.linspace(1, self.vocab_size - 1, self.block_rows).astype(np.int64)
            self.forward([InputRows(slot, others[:3])])
            self.commit({slot: range(len(others[:3]))})
            siblings = np.full(self.block_rows, COMMITTED)
            same = self.forward(
                [InputRows(slot, np.full(self.block_rows, token), siblings, num_logits=self.block_rows)]
            )
            self.truncate(slot, self.length(slot))
            mixed = self.forward([InputRows(slot, [token, *others], siblings, num_logits=self.block_rows)])
        finally:
            self.free(slot)
        if not (torch.equal(same, same[:1].expand_as(same)) and torch.equal(same[0], mixed[0])):
            raise UnsupportedModel(
                f"the logits of {type(self.model).__name__} depend on the other rows of a forward pass even"
                f" in blocks of {self.block_rows} rows: invariant mode cannot run it"
            )
