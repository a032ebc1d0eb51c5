"""Roofline model of step costs on hardware that is not available.

A forward pass reads the weights once and every token of context once, and multiplies every row by the
weights. It takes as long as the slower of the two, with a soft knee between them, plus a constant launch
time.

Peak figures are the vendors': NVIDIA's data sheets of the H100 SXM, A100 80GB SXM and L4 (dense bf16), AMD's
of the MI300X, NVIDIA's of the B200 in a DGX; for the laptop, two channels of DDR5-5600 and eight AVX2 cores
at 3 GHz. Model shapes are those of the published configurations. Achieved shares of the peaks and the launch
time are assumptions, the same for all devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.errors import ConfigurationError
from forerun.types import FloatArray

MEMORY_EFFICIENCY: Final = 0.8
COMPUTE_EFFICIENCY: Final = 0.6
"""Share of peak bandwidth and of peak compute that a good engine achieves."""

LAUNCH_SECONDS: Final = 0.002
"""Seconds per step that are neither memory nor compute time, on an accelerator."""

KNEE_SHARPNESS: Final = 4.0
"""Exponent of the power mean that joins the two limits."""


@dataclass(frozen=True, slots=True)
class Device:
    """Peak bytes read and operations per second, and memory in bytes."""

    bandwidth: float
    operations: float
    memory: float


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Weights read, weights active per row (fewer with mixture of experts), and KV bytes per token."""

    weights: float
    active: float
    context_bytes: float
    weight_bytes: float = 2.0


DEVICES: Final = {
    "laptop": Device(90e9, 0.8e12, 32e9),
    "l4": Device(300e9, 121e12, 24e9),
    "a100": Device(2.04e12, 312e12, 80e9),
    "h100": Device(3.35e12, 989e12, 80e9),
    "mi300x": Device(5.3e12, 1307e12, 192e9),
    "b200": Device(8.0e12, 2250e12, 180e9),
}

MODELS: Final = {
    "smollm2-135m": ModelSpec(0.135e9, 0.135e9, 2 * 30 * 3 * 64 * 2),
    "llama-3.2-1b": ModelSpec(1.24e9, 1.24e9, 2 * 16 * 8 * 64 * 2),
    "llama-3.1-8b": ModelSpec(8.03e9, 8.03e9, 2 * 32 * 8 * 128 * 2),
    "llama-3.1-8b-q4": ModelSpec(8.03e9, 8.03e9, 2 * 32 * 8 * 128 * 2, weight_bytes=0.56),
    "llama-3.1-70b": ModelSpec(70.6e9, 70.6e9, 2 * 80 * 8 * 128 * 2),
    "qwen2.5-7b": ModelSpec(7.62e9, 7.62e9, 2 * 28 * 4 * 128 * 2),
}


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step cost of a model on a number of devices that share the work."""

    device: Device
    model: ModelSpec
    num_devices: int = 1

    @classmethod
    def of(cls, device: str, model: str, num_devices: int = 1) -> Roofline:
        """Look up device and model by name."""
        for name, known in ((device, DEVICES), (model, MODELS)):
            if name not in known:
                raise ConfigurationError(
                    f"unknown device or model {name!r}; expected one of {', '.join(known)}"
                )
        return cls(DEVICES[device], MODELS[model], num_devices)

    @property
    def context_capacity(self) -> float:
        """Tokens of context that fit beside the weights."""
        free = 0.9 * self.device.memory * self.num_devices - self.model.weights * self.model.weight_bytes
        return max(free, 0.0) / self.model.context_bytes

    def __call__(self, rows: FloatArray, context: float) -> FloatArray:
        """Seconds of forward passes with these rows over `context` tokens of context."""
        bytes_read = self.model.weights * self.model.weight_bytes + context * self.model.context_bytes
        memory_seconds = bytes_read / (MEMORY_EFFICIENCY * self.device.bandwidth * self.num_devices)
        operations = COMPUTE_EFFICIENCY * self.device.operations * self.num_devices
        compute_seconds = 2 * self.model.active * rows / operations
        powers = memory_seconds**KNEE_SHARPNESS + compute_seconds**KNEE_SHARPNESS
        seconds: FloatArray = LAUNCH_SECONDS + np.power(powers, 1 / KNEE_SHARPNESS)
        return seconds
