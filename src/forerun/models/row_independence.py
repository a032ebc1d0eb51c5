"""Which block sizes give a row the same result, bit for bit, in every kind of layer of a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from forerun.core.row_blocks import cancelling_product, sizes_with_equal_rows
from forerun.models.packed_linear import PackedLinear
from forerun.models.vector_loops import splits_into_whole_vectors

_Layer = Callable[[torch.Tensor], torch.Tensor]
_Linear = PackedLinear | torch.nn.Linear


@torch.inference_mode()
def equal_block_sizes(model: Any, sizes: Sequence[int]) -> tuple[int, ...]:
    """Those of `sizes` in which all layers compute rows as in blocks of the first size; empty if it fails."""
    equal = tuple(size for size in sizes if _uses_whole_vectors(model, size))
    for layer, rows in _layers_with_rows(model, max(sizes)):
        if sizes[0] not in equal:
            return ()
        equal = sizes_with_equal_rows(layer, rows, equal)
    return equal


def _uses_whole_vectors(model: Any, num_rows: int) -> bool:
    """Whether loops over the outputs of linear layers split into whole vectors."""
    widths = {each.out_features for each in model.modules() if isinstance(each, _Linear)}
    return all(splits_into_whole_vectors(num_rows * width, torch.get_num_threads()) for width in widths)


def _layers_with_rows(model: Any, num_rows: int) -> Iterator[tuple[_Layer, torch.Tensor]]:
    """One layer of each kind and shape, linear layers and norms, with inputs [rows, 1, width]."""
    seen = set()
    for module in model.modules():
        is_linear = isinstance(module, _Linear)
        shapes = (module.in_features, module.out_features) if is_linear else _scales(module)
        if shapes and (type(module), shapes) not in seen:
            seen.add((type(module), shapes))
            layer, rows = _linear(module, model.dtype, num_rows) if is_linear else _norm(module, num_rows)
            yield layer, rows


def _scales(module: torch.nn.Module) -> tuple[int, ...]:
    """The lengths of a module's parameters, if it has nothing but scales and biases of its inputs."""
    is_norm = not list(module.children()) and {each.dim() for each in module.parameters()} == {1}
    return tuple(len(each) for each in module.parameters()) if is_norm else ()


def _norm(module: torch.nn.Module, num_rows: int) -> tuple[_Layer, torch.Tensor]:
    """A norm in float32, in which it computes in any case, with random rows."""
    generator = torch.Generator().manual_seed(0)
    norm = copy.deepcopy(module).float()
    return (lambda rows: norm(rows[None])[0]), torch.randn(num_rows, _scales(module)[0], generator=generator)


def _linear(module: Any, dtype: torch.dtype, num_rows: int) -> tuple[_Layer, torch.Tensor]:
    """A linear layer of the same kind and shape as a module, with rows whose exact outputs are zero."""
    weights, rows = cancelling_product(num_rows, module.in_features, module.out_features, dtype)
    linear = torch.nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
    linear.weight = torch.nn.Parameter(weights)
    layer = PackedLinear(linear) if isinstance(module, PackedLinear) else linear
    return (lambda rows: layer(rows[None])[0]), rows
