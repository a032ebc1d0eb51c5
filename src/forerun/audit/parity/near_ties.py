"""Classifies first differences of greedy outputs as near-ties or faults, with a reference model in float32.

A server in a lower precision picks another token than float32 only if the two logits are close. The bound on
"close" is measured: the reference model runs in the server's precision over the end of the same text, and the
largest error in the difference of two likely logits bounds the error of one server. The errors of two servers
add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from forerun.audit.sampled.against_model import TokenReader
from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.tensors import torch
from forerun.errors import ConfigurationError
from forerun.servers.completions import Token
from forerun.types import SamplingParams

if TYPE_CHECKING:
    from forerun.models.reference import Reference

PRECISIONS: Final = ("bfloat16", "float16", "float32")
"""The torch dtypes in which the reference model can run."""

_WINDOW: Final = 32
_NUM_LIKELY: Final = 5


@dataclass(frozen=True, slots=True)
class TieRuling:
    """The logit gap of two tokens at a first difference, and the largest gap that rounding explains."""

    gap: float
    bound: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return self.gap <= self.bound


class TieReferee(Protocol):
    """Classifies the first difference of two outputs."""

    def classify(
        self,
        prompt: Sequence[int],
        prefix: Sequence[Token],
        tokens: tuple[Token, Token],
        sampling: SamplingParams,
        /,
    ) -> TieRuling:
        """Classify two tokens that follow the same prompt and prefix."""

    @property
    def definition(self) -> str:
        """The definition of a near-tie."""


class NearTieReferee:
    """Classifies the first difference of two outputs by the float32 logits of a reference model."""

    def __init__(self, model: Reference, precisions: Sequence[str], bound: float | None = None) -> None:
        if bound is None and (unknown := [each for each in precisions if each not in PRECISIONS]):
            raise ConfigurationError(
                f"precision {unknown[0]} is not supported; expected one of {', '.join(PRECISIONS)}: for"
                " another, set the near-tie bound with --bound"
            )
        self._model = model
        self._precisions = [] if bound is not None else [getattr(torch, each) for each in precisions]
        self._bound = bound
        self._models: dict[torch.dtype, Reference] = {model.dtype: model}
        self.read_tokens = TokenReader(model)

    def classify(
        self,
        prompt: Sequence[int],
        prefix: Sequence[Token],
        tokens: tuple[Token, Token],
        sampling: SamplingParams,
    ) -> TieRuling:
        """Classify two tokens that follow the same prompt and prefix."""
        path = self.read_tokens(prefix)
        (one,), (other,) = (self.read_tokens([token]) for token in tokens)
        logits = self._model.after(prompt, [path]).float()
        apply_logits_processors(
            logits, BatchSampling.of([sampling]), [RowContext(TokenHistory(prompt), path)]
        )
        gap = float((logits[0, one] - logits[0, other]).abs())
        if self._bound is not None:
            return TieRuling(gap, self._bound)
        text = [*prompt, *path]
        return TieRuling(gap, sum(self._error(text, dtype) for dtype in self._precisions))

    def _error(self, text: Sequence[int], dtype: torch.dtype) -> float:
        """The largest error of a dtype in the difference of two likely logits, near the end of a text."""
        better = torch.float64 if dtype == torch.float32 else torch.float32
        num = min(_WINDOW, len(text))
        exact, rough = (self._model_in(each).prefix_logits(text, num).double() for each in (better, dtype))
        likely = exact.topk(min(_NUM_LIKELY, exact.shape[1])).indices
        errors = (rough - exact).gather(1, likely)
        return float((errors.amax(1) - errors.amin(1)).max())

    def _model_in(self, dtype: torch.dtype) -> Reference:
        if dtype not in self._models:
            self._models[dtype] = type(self._model)(self._model.name, dtype)
        return self._models[dtype]

    @cached_property
    def definition(self) -> str:
        """The definition of a near-tie in this audit."""
        if self._bound is not None:
            return f"near-tie: logits at most {self._bound:g} apart in float32, as given by --bound"
        names = [str(each).removeprefix("torch.") for each in self._precisions]
        low = sorted({name for name in names if name != "float32"})
        return (
            f"near-tie: logits no further apart in float32 than the error of {' and '.join(names)} in the"
            f" difference of two likely logits, measured over the last {_WINDOW} tokens"
        ) + (f"; in {' and '.join(low)}, identical tokens are not guaranteed at near-ties" if low else "")
