"""torch, which the base install does not include.

Modules that use torch import it from here. Without torch they can still be imported, so code that never
touches a tensor (rational arithmetic, audits of one server against another) runs; the first use of torch
raises `MissingExtra`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from forerun.errors import MissingExtra

__all__ = ["HAS_TORCH", "Tensor", "torch"]

HAS_TORCH: Final = find_spec("torch") is not None


class _MissingTorch:
    """Placeholder for the module where torch is not installed."""

    def __getattr__(self, name: str) -> Any:
        raise MissingExtra("torch", "torch")


if TYPE_CHECKING or HAS_TORCH:
    import torch
    from torch import Tensor
else:
    torch = _MissingTorch()
    Tensor = ()
    """No object is an instance of it."""
