"""Linear layers with packed weights, for matrix products whose rows do not depend on their number.

Intel's MKL stores the packed weights in the order in which its kernel reads them. Packed once, they serve any
number of rows: a row's sum has the same order in all of them, and a few rows take hardly longer than one.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import torch

from forerun.models.loading import has_bfloat16_instructions

_PACKED_FOR_ROWS: Final = 64
"""MKL tiles the weights for products of this many rows."""


class PackedLinear(torch.nn.Module):
    """A linear layer that multiplies in float32 and rounds its output to the dtype of its input."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().float()
        self._shape = torch.zeros(1).expand_as(weight)  # in place of the weights, of which the shape is read

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The product of rows [..., inputs] with the weights."""
        num_rows = rows.numel() // self.in_features
        # A last argument other than the number of rows would call the kernel for weights that are not packed.
        product = torch.ops.mkl._mkl_linear(rows.float(), self.packed, self._shape, self.bias, num_rows)
        output: torch.Tensor = product.to(rows.dtype)
        return output


def gains_from_packing(model: Any) -> bool:
    """Whether products are faster with packed weights: in float32, or where a CPU emulates bfloat16."""
    is_emulated = model.dtype == torch.bfloat16 and not has_bfloat16_instructions()
    return (model.dtype == torch.float32 or is_emulated) and torch._C.has_mkl


def pack_linear_layers(model: Any) -> Any:
    """The model with packed linear layers, if it gains from them.

    The given model is not changed, and shares all other weights.
    """
    if not gains_from_packing(model):
        return model
    shared = {id(each): each for each in (*model.parameters(), *model.buffers())}
    packed = copy.deepcopy(model, shared)
    for name, module in list(packed.named_modules()):
        if type(module) is torch.nn.Linear:
            packed.set_submodule(name, PackedLinear(module))
    return packed
