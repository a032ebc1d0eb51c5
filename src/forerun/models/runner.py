"""Running a model over rows of many texts: read rows, keep a path, drop the rest.

A text lives in a slot: committed rows, and behind them those that were read since, a tree in general. A row
looks at what is committed and at its own ancestors. Chains, trees, prompts in pieces and single tokens are
all read by the same pass, by the engine's target and by a draft model alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from forerun.errors import ConfigurationError, InvalidRequest, UnsupportedModel
from forerun.models.attention import NAME, Segment, blocks_of
from forerun.models.kv_cache import CacheShape, SlottedCache
from forerun.types import BoolArray, IntArray

COMMITTED: Final = -1
"""The parent of a row that directly follows the committed ones."""

_SHORTEST: Final = 8

_PROBE: Final = (3, 4, 5, 4, 3)
_TREE: Final = (4, 2, 5, 3, 4)
_PARENTS: Final[IntArray] = np.array([COMMITTED, COMMITTED, 0, 1, 2])
_PATH: Final = (0, 2, 4)
"""Tokens that every model is tried with, whatever they mean to it: all but the first and the last of them are
read again as a path of a tree."""


@dataclass(frozen=True, slots=True, eq=False)
class InputRows:
    """Tokens to read behind a text. `parents` are rows read since the last `keep`, these included, or
    `COMMITTED`; without any the tokens are a chain behind the last row read. Logits are wanted of the last
    `num_logits`.
    """

    slot: int
    tokens: Sequence[int] | IntArray
    parents: IntArray | None = None
    num_logits: int = 1


class Runner:
    """A model, and slots for `num_slots` texts of at most `max_length` tokens.

    The model's module is not changed; where it lets one choose, attention is ours, which reads many texts in
    one pass. Models whose attention is their own read text by text. Either way the model is tried first, and
    refused if it does not say here what it says by itself.
    """

    def __init__(self, model: Any, *, num_slots: int = 16, max_length: int | None = None) -> None:
        self.model = model
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.max_length = min(max_length or 2**62, longest(model))
        if self.max_length < _SHORTEST:
            whose = "max_length" if self.max_length < longest(model) else "the model's own context length"
            raise ConfigurationError(f"{whose} is {self.max_length} tokens; it must be at least {_SHORTEST}")
        self.num_passes, self.seconds = 0, 0.0
        plain, shape = _tried_plainly(model, _ordinary(_PROBE, self.vocab_size))
        self.cache = SlottedCache(shape, num_slots, self.max_length, model.dtype, model.device)
        self._visible: dict[int, BoolArray] = {}
        self._fault = ""
        self._together = self._can_read_together(plain)
        if not self._together and not self._agrees(plain):
            raise UnsupportedModel(
                f"{type(model).__name__} says something else when its rows are read as a tree: its attention"
                f" takes no 4-D mask, or it does not take positions; this engine cannot run it{self._fault}"
            )
        self.num_passes, self.seconds = 0, 0.0

    def length(self, slot: int) -> int:
        """How many rows of a text are committed."""
        return int(self.cache.lengths[slot])

    def allocate(self) -> int:
        """A slot for a new text."""
        slot = self.cache.allocate()
        self._visible[slot] = _NONE
        return slot

    def free(self, slot: int) -> None:
        """A text is over."""
        del self._visible[slot]
        self.cache.free(slot)

    @torch.inference_mode()
    def forward(self, texts: Sequence[InputRows]) -> torch.Tensor:
        """Read rows of some texts in one pass; the logits that are wanted, text after text."""
        if self._together or len(texts) == 1:
            return self._pass(texts)
        return torch.cat([self._pass([each]) for each in texts])

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """Commit, of the rows read behind each of these texts, one path; the others are dropped."""
        moves = [
            (slot, self.length(slot) + row, self.length(slot) + place)
            for slot, path in paths.items()
            for place, row in enumerate(path)
            if row != place
        ]
        for slot, path in paths.items():
            self.cache.lengths[slot] += len(path)
            self._visible[slot] = _NONE
        if moves:
            self.cache.move(*np.array(moves, dtype=np.int64).T)

    def truncate(self, slot: int, length: int) -> None:
        """Roll a text back to a length."""
        self.cache.lengths[slot] = min(length, self.length(slot))
        self._visible[slot] = _NONE

    @property
    def description(self) -> str:
        """What the time of a pass depends on: the model, its numbers, and where it runs."""
        model = self.model
        size = sum(weight.numel() for weight in model.parameters())
        return f"{type(model).__name__} {size} {model.dtype} {model.device} {torch.get_num_threads()}"

    def time_forward(self, num_rows: int) -> float:
        """The seconds of a pass with so many rows, as guesses make them; needs a free slot."""
        slot = self.allocate()
        try:
            rows = min(num_rows, self.max_length)
            self._wait()
            began = time.perf_counter()
            self.forward([InputRows(slot, np.ones(rows, dtype=np.int64), num_logits=rows)])
            self._wait()
            return time.perf_counter() - began
        finally:
            self.free(slot)

    def _wait(self) -> None:
        """Until the device has done what it was told."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def _pass(self, texts: Sequence[InputRows]) -> torch.Tensor:
        """One run of the model."""
        parts = [self._part(rows) for rows in texts]
        blocks = blocks_of(parts, self.model.dtype, self.model.device)
        slots = np.repeat([part.slot for part in parts], [part.num_rows for part in parts])
        places = np.concatenate([part.num_seen - part.num_rows + np.arange(part.num_rows) for part in parts])
        if not self._together:
            self.cache.show(*blocks[0].slots, blocks[0].length)
        wanted = _wanted(texts)
        began = time.perf_counter()
        with self.cache.aimed(slots, places):
            out = self.model(
                input_ids=self._row([np.asarray(rows.tokens) for rows in texts]),
                position_ids=self._row([part.positions for part in parts]),
                attention_mask=blocks[0].mask,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=torch.from_numpy(wanted).to(self.model.device) if len(wanted) else 1,
                **({"blocks": blocks} if self._together else {}),
            )
        self.num_passes += 1
        self.seconds += time.perf_counter() - began
        for part in parts:
            self._visible[part.slot] = _below(self._visible[part.slot], part.visible)
        logits: torch.Tensor = out.logits[0, : len(wanted)]
        return logits

    def _part(self, rows: InputRows) -> Segment:
        """What the rows of a text may look at."""
        part = Segment(rows.slot, self.length(rows.slot), _lineage(self._visible[rows.slot], rows))
        if part.num_seen > self.max_length:
            raise InvalidRequest(f"a text of {part.num_seen} tokens came for {self.max_length} places")
        return part

    def _row(self, numbers: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
        """[1, rows] of all texts."""
        return torch.from_numpy(np.concatenate(numbers).astype(np.int64))[None].to(self.model.device)

    def _can_read_together(self, plain: torch.Tensor) -> bool:
        """Give the model our attention, if it takes one and then says what it says by itself."""
        own = self.model.config._attn_implementation
        if getattr(self.model, "_supports_attention_backend", False):
            self._together = True
            self.model.set_attn_implementation(NAME)
            if self._agrees(plain):
                return True
        self._together = False
        self.model.set_attn_implementation(own if own in {"eager", "sdpa"} else "sdpa")
        return False

    def _agrees(self, plain: torch.Tensor) -> bool:
        """Whether reading the probe as a tree, beside another text, gives what reading it plainly gave."""
        probe, tree = (_ordinary(eighths, self.vocab_size) for eighths in (_PROBE, _TREE))
        here, *other = [self.allocate() for _ in range(min(2, self.cache.num_slots))]
        try:
            self.forward([InputRows(here, probe[:1]), *(InputRows(slot, probe[3:]) for slot in other)])
            self.commit({here: [0]})
            rows = InputRows(here, tree, _PARENTS, num_logits=len(tree))
            tried = self.forward([*(InputRows(slot, probe[:1], num_logits=0) for slot in other), rows])
            self.commit({here: _PATH})
            said = torch.cat([tried[list(_PATH)], self.forward([InputRows(here, probe[-1:])])])
        except Exception as error:  # whatever a model does with arguments it does not know
            self._fault = f": {error}"
            return False
        finally:
            for slot in (here, *other):
                self.free(slot)
        loose = 1e-3 if self.model.dtype in {torch.float32, torch.float64} else 0.1
        return bool((said - plain[1:]).abs().max() <= loose * plain.abs().max())


_NONE: Final[BoolArray] = np.zeros((0, 0), dtype=bool)


def longest(model: Any) -> int:
    """How many tokens a text may have, if every layer is to see all of it."""
    config = model.config.get_text_config()
    bounds = [getattr(config, "max_position_embeddings", None)]
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} or not kinds:
        bounds += [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type") == "longrope":  # the longest text of a pass would change all others
        bounds.append(
            rope.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
        )
    return min((bound for bound in bounds if bound), default=2**31)


def _ordinary(eighths: Sequence[int], vocab_size: int) -> list[int]:
    """Tokens by their place in the vocabulary, in eighths: from its middle, where ordinary words are. The
    first ones steer the model, and in low precision what it says after them depends on the last bit.
    """
    return [vocab_size * each // 8 for each in eighths]


@torch.inference_mode()
def _tried_plainly(model: Any, probe: Sequence[int]) -> tuple[torch.Tensor, CacheShape]:
    """What the model says by itself after each token of the probe, and what it keeps of one."""
    cache = DynamicCache()
    out = model(torch.tensor([probe], device=model.device), past_key_values=cache, use_cache=True)
    kept = {_kept(layer) for layer in cache.layers}
    if len(kept) != 1 or () in kept:
        raise UnsupportedModel(
            f"{type(model).__name__} does not keep the same keys and values in each layer;"
            " this engine runs decoders with ordinary attention"
        )
    ((num_heads, key_size, _, value_size),) = kept
    return out.logits[0], CacheShape(len(cache.layers), num_heads, key_size, value_size)


def _kept(layer: Any) -> tuple[int, ...]:
    """The heads and sizes of what a layer keeps of a token; nothing, if that is not keys and values."""
    if getattr(layer, "keys", None) is None:
        return ()
    return (*(layer.keys.shape[i] for i in (1, 3)), *(layer.values.shape[i] for i in (1, 3)))


def _lineage(above: BoolArray, rows: InputRows) -> BoolArray:
    """[rows, rows of the text that are not committed]: what each row descends from, itself included."""
    before, num = len(above), len(rows.tokens)
    if rows.parents is None and not before:
        return np.tri(num, dtype=bool)
    parents = np.arange(before - 1, before - 1 + num) if rows.parents is None else rows.parents
    visible = np.zeros((num, before + num), dtype=bool)
    for row, parent in enumerate(parents.tolist()):
        if parent >= before:
            visible[row] = visible[parent - before]
        elif parent != COMMITTED:
            visible[row, :before] = above[parent]
        visible[row, before + row] = True
    return visible


def _below(above: BoolArray, visible: BoolArray) -> BoolArray:
    """The lineage of all rows of a text that are not committed, with those of a pass."""
    if not len(above):
        return visible
    square = np.zeros((visible.shape[1],) * 2, dtype=bool)
    square[: len(above), : len(above)] = above
    square[len(above) :] = visible
    return square


def _wanted(texts: Sequence[InputRows]) -> IntArray:
    """The rows of a pass whose logits are wanted."""
    ends = np.cumsum([len(rows.tokens) for rows in texts])
    return np.concatenate(
        [np.arange(end - rows.num_logits, end) for end, rows in zip(ends, texts, strict=True)]
    )
