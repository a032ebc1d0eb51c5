"""Forward passes over rows of many sequences: compute rows, commit a path, roll back the rest.

A sequence occupies a slot: committed rows, followed by uncommitted rows, which form a tree. A row attends to
the committed rows and to its own ancestors. Chains, trees, prompt chunks and single tokens share one forward
pass. The target model and draft models both run this way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
import transformers

from forerun.errors import ConfigurationError, InvalidRequest, UnsupportedModel
from forerun.models.attention import ATTENTION_NAME, Segment, make_blocks
from forerun.models.input_rows import NO_ROWS, InputRows, extend_visibility, visibility
from forerun.models.kv_cache import SlottedCache
from forerun.models.model_call import ModelCall
from forerun.models.packed_rows import PackedRows
from forerun.models.probe import ModelProbe
from forerun.types import BoolArray, IntArray

_MIN_LENGTH: Final = 8


class Runner:
    """A model with `num_slots` slots for sequences of at most `max_length` tokens.

    The model's modules are not changed. Where the model supports attention backends, forerun's attention
    computes many sequences in one forward pass; otherwise each sequence has its own. The constructor probes
    the model and raises `UnsupportedModel` if its logits differ from those of an ordinary forward pass.
    Forward passes are recorded in `calls` if it is a list.
    """

    block_sizes: Sequence[int] = ()
    """Numbers of rows of a call of the model, if they are restricted (see `InvariantRunner`)."""

    def __init__(self, model: Any, *, num_slots: int = 16, max_length: int | None = None) -> None:
        self.model = model
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.max_length = min(max_length or 2**62, max_context_length(model))
        if self.max_length < _MIN_LENGTH:
            name = (
                "max_length"
                if self.max_length < max_context_length(model)
                else "the model's own context length"
            )
            raise ConfigurationError(f"{name} is {self.max_length} tokens; it must be at least {_MIN_LENGTH}")
        self.num_forward_passes, self.seconds = 0, 0.0
        self.calls: list[ModelCall] | None = None
        probe = ModelProbe(model, self.vocab_size)
        self.cache = SlottedCache(probe.cache_shape, num_slots, self.max_length, model.dtype, model.device)
        self._visible: dict[int, BoolArray] = {}
        self._batched = self._try_batched(probe)
        if not self._batched and not probe.agrees(self):
            raise UnsupportedModel(
                f"{type(model).__name__} computes different logits when its rows are a tree: its attention"
                f" ignores 4-D masks or position ids; the local engine cannot run it{probe.fault}"
            )
        self.num_forward_passes, self.seconds = 0, 0.0

    def length(self, slot: int) -> int:
        """The committed rows of a slot."""
        return int(self.cache.lengths[slot])

    def allocate(self) -> int:
        """Allocate an empty slot."""
        slot = self.cache.allocate()
        self._visible[slot] = NO_ROWS
        return slot

    def free(self, slot: int) -> None:
        """Free a slot."""
        del self._visible[slot]
        self.cache.free(slot)

    @torch.inference_mode()
    def forward(self, inputs: Sequence[InputRows]) -> torch.Tensor:
        """Compute rows of several slots in one forward pass; returns the requested logits in that order."""
        if self._batched or len(inputs) == 1:
            return self._forward_once(inputs)
        return torch.cat([self._forward_once([each]) for each in inputs])

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """Commit one path of each slot's uncommitted rows; drop the other rows."""
        moves = [
            (slot, self.length(slot) + row, self.length(slot) + position)
            for slot, path in paths.items()
            for position, row in enumerate(path)
            if row != position
        ]
        for slot, path in paths.items():
            self.cache.lengths[slot] += len(path)
            self._visible[slot] = NO_ROWS
        if moves:
            self.cache.move(*np.array(moves, dtype=np.int64).T)

    def retain(self, slot: int, rows: Sequence[int]) -> None:
        """Keep these uncommitted rows of a slot, in this order, and drop the others."""
        first = self.length(slot)
        moves = [(slot, first + row, first + i) for i, row in enumerate(rows) if row != i]
        if moves:
            self.cache.move(*np.array(moves, dtype=np.int64).T)
        self._visible[slot] = self._visible[slot][np.ix_(rows, rows)]

    def advance(self, slot: int, path: Sequence[int], kept: Sequence[int]) -> None:
        """Commit a path of a slot's uncommitted rows, keep the chain behind it, and drop the others."""
        self.retain(slot, [*path, *kept])
        self.cache.lengths[slot] += len(path)
        self._visible[slot] = self._visible[slot][len(path) :, len(path) :]

    def truncate(self, slot: int, length: int) -> None:
        """Roll a slot back to at most `length` committed rows."""
        self.cache.lengths[slot] = min(length, self.length(slot))
        self._visible[slot] = NO_ROWS

    @property
    def description(self) -> str:
        """Everything that the duration of a forward pass depends on, except the machine: model, size, dtype,
        device, threads, and the versions of torch and transformers.
        """
        model = self.model
        size = sum(weight.numel() for weight in model.parameters())
        return (
            f"{type(model).__name__} {size} {model.dtype} {model.device} {torch.get_num_threads()}"
            f" torch {torch.__version__} transformers {transformers.__version__}"
        )

    def time_forward(self, num_rows: int) -> float:
        """Seconds of a forward pass over `num_rows` rows with all logits; needs a free slot."""
        slot = self.allocate()
        try:
            rows = min(num_rows, self.max_length)
            self._synchronize()
            began = time.perf_counter()
            self.forward([InputRows(slot, np.ones(rows, dtype=np.int64), num_logits=rows)])
            self._synchronize()
            return time.perf_counter() - began
        finally:
            self.free(slot)

    def _synchronize(self) -> None:
        """Wait for the device."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def _forward_once(self, inputs: Sequence[InputRows]) -> torch.Tensor:
        """One forward pass of the model."""
        rows = PackedRows.of(inputs, [self._segment(each) for each in inputs])
        began = time.perf_counter()
        logits = self._compute(rows)
        ended = time.perf_counter()
        self.num_forward_passes += 1
        self.seconds += ended - began
        if self.calls is not None:
            self.calls.append(ModelCall(began, ended, len(rows.tokens)))
        for segment in rows.segments:
            self._visible[segment.slot] = extend_visibility(self._visible[segment.slot], segment.visible)
        return logits

    def _compute(self, rows: PackedRows) -> torch.Tensor:
        """Call the model; returns the requested logits."""
        blocks = make_blocks(rows.segments, self.model.dtype, self.model.device)
        if not self._batched:
            self.cache.set_view(*blocks[0].slots, blocks[0].length)
        wanted = rows.wanted
        with self.cache.writing_to(rows.slots, rows.cache_rows):
            out = self.model(
                input_ids=self._tensor(rows.tokens),
                position_ids=self._tensor(rows.positions),
                attention_mask=blocks[0].mask,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=torch.from_numpy(wanted).to(self.model.device) if len(wanted) else 1,
                **({"blocks": blocks} if self._batched else {}),
            )
        logits: torch.Tensor = out.logits[0, : len(wanted)]
        return logits

    def _segment(self, rows: InputRows) -> Segment:
        """The rows of a slot with their visibility."""
        segment = Segment(rows.slot, self.length(rows.slot), visibility(self._visible[rows.slot], rows))
        if segment.num_visible > self.max_length:
            raise InvalidRequest(
                f"got a sequence of {segment.num_visible} tokens; slots hold {self.max_length}"
            )
        return segment

    def _tensor(self, numbers: IntArray) -> torch.Tensor:
        """One number per row as a tensor [1, rows] on the model's device."""
        return torch.from_numpy(numbers)[None].to(self.model.device)

    def _try_batched(self, probe: ModelProbe) -> bool:
        """Set forerun's attention if the model supports it and its logits stay the same."""
        own = self.model.config._attn_implementation
        if getattr(self.model, "_supports_attention_backend", False):
            self._batched = True
            self.model.set_attn_implementation(ATTENTION_NAME)
            if probe.agrees(self):
                return True
        self._batched = False
        self.model.set_attn_implementation(own if own in {"eager", "sdpa"} else "sdpa")
        return False


def max_context_length(model: Any) -> int:
    """The longest sequence of which every layer attends to all tokens."""
    config = model.config.get_text_config()
    bounds = [getattr(config, "max_position_embeddings", None)]
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} or not kinds:
        bounds += [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type") == "longrope":  # the longest sequence of a batch would change the others
        bounds.append(
            rope.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
        )
    return min((bound for bound in bounds if bound), default=2**31)
