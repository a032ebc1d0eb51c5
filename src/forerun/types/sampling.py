"""The sampling settings of a request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from forerun.errors import InvalidSampling

GREEDY_TEMPERATURE: Final = 1e-5
"""Below this temperature decoding is greedy, as in vLLM."""

_NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of a request, with the semantics of vLLM's sampler.

    With a `seed`, speculative decoding emits exactly the tokens of non-speculative decoding with that seed in
    float32; in lower precision up to near-ties, which change with the number of rows in a forward pass unless
    invariant mode is on.
    Values that vLLM's front end rounds or clamps before sampling are taken as given here; engines apply that
    step themselves.

    Attributes:
        temperature: 0 (below 1e-5) is greedy decoding.
        top_k: Keep the k most likely tokens; 0 disables it.
        top_p: Keep the smallest set of most likely tokens with this much probability; 1 disables it.
        min_p: Drop tokens less likely than `min_p` times the most likely token; 0 disables it.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or output.
        presence_penalty: Subtracted from the logits of tokens in the output.
        frequency_penalty: Subtracted from the logits of tokens in the output, once per occurrence.
        logit_bias: Added to the logits of these token ids.
        allowed_token_ids: If set, no other token can be emitted.
        bad_words: Token sequences. The last token of each is forbidden where the output ends with the others.
        seed: Makes sampling reproducible.

    Raises:
        InvalidSampling: A setting is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, math.inf)
        _check_range("top_k", self.top_k, 0, math.inf)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_below=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_below=True)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidSampling(
                "allowed_token_ids is empty, so no token can be emitted: pass None to allow all"
            )
        if not all(math.isfinite(bias) for bias in self.logit_bias.values()):
            raise InvalidSampling(
                "logit_bias has an infinite or NaN entry: use allowed_token_ids or bad_words to forbid tokens"
            )
        if not all(self.bad_words):
            raise InvalidSampling("bad_words contains an empty sequence: remove it")

    @property
    def greedy(self) -> bool:
        """Whether decoding is greedy."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def unseeded(self) -> bool:
        """Whether tokens are sampled without a seed, so that draft tokens may be sampled from a q as well."""
        return not self.greedy and self.seed is None

    @property
    def looks_back(self) -> bool:
        """Whether logits processors depend on earlier tokens: penalties or bad words are set."""
        penalised = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (
            1.0,
            0.0,
            0.0,
        )
        return penalised or bool(self.bad_words)


def _check_range(name: str, value: float, low: float, high: float, *, open_below: bool = False) -> None:
    """Raise unless the value is finite and within its bounds."""
    if math.isfinite(value) and low <= value <= high and not (open_below and value == low):
        return
    below = f"above {low:g}" if open_below else f"at least {low:g}"
    above = "" if high == math.inf else f" and at most {high:g}"
    raise InvalidSampling(f"{name} is {value}; it must be finite, {below}{above}")
