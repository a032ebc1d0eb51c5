"""What a step costs on machines that are not at hand: a roofline.

A pass reads the weights once and every token of context once, and multiplies every row by the weights. It
takes as long as the slower of the two, with a soft knee between them, and a fixed time to be launched.

Peak figures are the vendors': NVIDIA's data sheets of the H100 SXM, A100 80GB SXM and L4 (dense bf16), AMD's
of the MI300X, NVIDIA's of the B200 in a DGX; for the laptop, two channels of DDR5-5600 and eight AVX2 cores
at 3 GHz. Shapes of models are those of their published configurations. What share of a peak is reached, and
what a launch takes, are assumptions, the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.errors import ConfigurationError
from forerun.types import FloatArray

MEMORY_SHARE: Final = 0.8
COMPUTE_SHARE: Final = 0.6
"""The share of the peak that a good engine reaches, reading and multiplying."""

LAUNCH: Final = 0.002
"""Seconds of a step that are neither, on an accelerator."""

KNEE: Final = 4.0
"""How sharply one limit gives way to the other: the exponent of a power mean."""


@dataclass(frozen=True, slots=True)
class Device:
    """Bytes read and operations done in a second, at best, and the bytes it holds."""

    bandwidth: float
    operations: float
    memory: float


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Weights that are read, weights that a row is multiplied by (fewer where experts are chosen), and bytes
    of context for every token.
    """

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
    "llama-3.1-8b": ModelSpec(8.03e9, 8.03e9, 2 * 32 * 8 * 128 * 2),
    "llama-3.1-8b-q4": ModelSpec(8.03e9, 8.03e9, 2 * 32 * 8 * 128 * 2, weight_bytes=0.56),
    "llama-3.1-70b": ModelSpec(70.6e9, 70.6e9, 2 * 80 * 8 * 128 * 2),
    "qwen2.5-7b": ModelSpec(7.62e9, 7.62e9, 2 * 28 * 4 * 128 * 2),
}


@dataclass(frozen=True, slots=True)
class Roofline:
    """The cost of a model's steps on some devices that share the work."""

    device: Device
    model: ModelSpec
    num_devices: int = 1

    @classmethod
    def of(cls, device: str, model: str, num_devices: int = 1) -> Roofline:
        """By name."""
        for name, known in ((device, DEVICES), (model, MODELS)):
            if name not in known:
                raise ConfigurationError(f"nothing is known of {name!r}; there is {', '.join(known)}")
        return cls(DEVICES[device], MODELS[model], num_devices)

    @property
    def room(self) -> float:
        """The tokens of context that fit beside the weights."""
        free = 0.9 * self.device.memory * self.num_devices - self.model.weights * self.model.weight_bytes
        return max(free, 0.0) / self.model.context_bytes

    def __call__(self, rows: FloatArray, context: float) -> FloatArray:
        """Seconds of passes of so many rows over so many tokens of context."""
        read = self.model.weights * self.model.weight_bytes + context * self.model.context_bytes
        reading = read / (MEMORY_SHARE * self.device.bandwidth * self.num_devices)
        working = 2 * self.model.active * rows / (COMPUTE_SHARE * self.device.operations * self.num_devices)
        seconds: FloatArray = LAUNCH + np.power(reading**KNEE + working**KNEE, 1 / KNEE)
        return seconds
