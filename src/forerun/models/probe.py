"""A probe of a model at load: does it compute the same logits when its rows form a tree?

A model whose attention ignores 4-D masks or position ids would verify draft trees against wrong logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from transformers import DynamicCache

from forerun.errors import UnsupportedModel
from forerun.models.input_rows import COMMITTED, InputRows
from forerun.models.kv_cache import CacheShape
from forerun.types import IntArray

if TYPE_CHECKING:
    from forerun.models.runner import Runner

_PROBE: Final = (3, 4, 5, 4, 3)
_TREE: Final = (4, 2, 5, 3, 4)
_PARENTS: Final[IntArray] = np.array([COMMITTED, COMMITTED, 0, 1, 2])
_PATH: Final = (0, 2, 4)
"""Every model is probed with these tokens (see `_probe_tokens`). All but the first and the last are computed
again as a path of a tree."""


class ModelProbe:
    """The logits of an ordinary forward pass over a few tokens, and the shape of the model's cache.

    Raises `UnsupportedModel` if the model does not cache keys and values of one shape in every layer.
    """

    @torch.inference_mode()
    def __init__(self, model: Any, vocab_size: int) -> None:
        self._tokens, self._tree = (_probe_tokens(eighths, vocab_size) for eighths in (_PROBE, _TREE))
        cache = DynamicCache()
        tokens = torch.tensor([self._tokens], device=model.device)
        self._logits: torch.Tensor = model(tokens, past_key_values=cache, use_cache=True).logits[0]
        self.cache_shape = _cache_shape(model, cache)
        self.fault = ""
        """The model's last error when it was run over a tree, as a suffix for a message."""

    def agrees(self, runner: Runner) -> bool:
        """Whether the runner computes these logits, up to rounding, as a tree beside another sequence."""
        slot, *others = [runner.allocate() for _ in range(min(2, runner.cache.num_slots))]
        try:
            logits = self._tree_logits(runner, slot, others)
        except Exception as error:  # a model may raise anything on unknown arguments
            self.fault = f": {error}"
            return False
        finally:
            for each in (slot, *others):
                runner.free(each)
        tolerance = 1e-3 if runner.model.dtype in {torch.float32, torch.float64} else 0.1
        return bool((logits - self._logits[1:]).abs().max() <= tolerance * self._logits.abs().max())

    def _tree_logits(self, runner: Runner, slot: int, others: Sequence[int]) -> torch.Tensor:
        """The logits after all tokens but the first, computed as a path of a tree."""
        tokens, tree = self._tokens, self._tree
        runner.forward([InputRows(slot, tokens[:1]), *(InputRows(other, tokens[3:]) for other in others)])
        runner.commit({slot: [0]})
        rows = InputRows(slot, tree, _PARENTS, num_logits=len(tree))
        tree_logits = runner.forward(
            [*(InputRows(other, tokens[:1], num_logits=0) for other in others), rows]
        )
        runner.commit({slot: _PATH})
        return torch.cat([tree_logits[list(_PATH)], runner.forward([InputRows(slot, tokens[-1:])])])


def _probe_tokens(eighths: Sequence[int], vocab_size: int) -> list[int]:
    """Tokens at these eighths of the vocabulary, where ordinary text tokens are.

    The first tokens of a vocabulary are special ones; in low precision, logits after them depend on the last
    bit.
    """
    return [vocab_size * each // 8 for each in eighths]


def _cache_shape(model: Any, cache: DynamicCache) -> CacheShape:
    """The shape of the keys and values that a forward pass cached."""
    shapes = {_layer_shape(layer) for layer in cache.layers}
    if len(shapes) != 1 or () in shapes:
        raise UnsupportedModel(
            f"{type(model).__name__} does not cache keys and values of one shape in every layer;"
            " the local engine runs decoders with ordinary attention"
        )
    ((num_heads, key_size, _, value_size),) = shapes
    return CacheShape(len(cache.layers), num_heads, key_size, value_size)


def _layer_shape(layer: Any) -> tuple[int, ...]:
    """Heads and sizes of a layer's keys and values; empty if it caches something else."""
    if getattr(layer, "keys", None) is None:
        return ()
    return (*(layer.keys.shape[i] for i in (1, 3)), *(layer.values.shape[i] for i in (1, 3)))
