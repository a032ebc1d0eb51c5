"""Who decides whether two answers parted over a tie: the reference, in float32.

Where a server in a lower precision takes another token than one in float32 would, the two were close. How
close is a matter of the precision: the same model is run in it here, over the end of the same text, and the
largest error it makes in the difference of two likely logits is what one server may be off by. Two servers
may be off by the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from forerun.audit.sampled.against_model import TokenReader
from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.tensors import torch
from forerun.errors import ConfigurationError
from forerun.servers.endpoint import Token
from forerun.types import SamplingParams

if TYPE_CHECKING:
    from forerun.models.reference import Reference

PRECISIONS: Final = ("bfloat16", "float16", "float32")
"""Names of torch's types in which the reference can be run."""

_WINDOW: Final = 32
_LIKELY: Final = 5


@dataclass(frozen=True, slots=True)
class TieRuling:
    """How far apart two tokens are where answers parted, and how far rounding can move them."""

    gap: float
    bound: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.gap <= self.bound


class NearTieReferee:
    """Rules on places where answers part."""

    def __init__(self, model: Reference, precisions: Sequence[str], bound: float | None = None) -> None:
        if bound is None and (unknown := [each for each in precisions if each not in PRECISIONS]):
            raise ConfigurationError(
                f"precision {unknown[0]} cannot be run here; there are {', '.join(PRECISIONS)}: for another,"
                " give the bound itself"
            )
        self._model = model
        self._precisions = [] if bound is not None else [getattr(torch, each) for each in precisions]
        self._bound = bound
        self._in: dict[torch.dtype, Reference] = {model.dtype: model}
        self.read = TokenReader(model)

    def rule(
        self,
        prompt: Sequence[int],
        said: Sequence[Token],
        tokens: tuple[Token, Token],
        sampling: SamplingParams,
    ) -> TieRuling:
        """Rule on two tokens after a prompt and what both answers said."""
        path = self.read(said)
        (one,), (other,) = (self.read([token]) for token in tokens)
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
        """The largest error of a precision in the difference of two likely logits, near the end of a text."""
        better = torch.float64 if dtype == torch.float32 else torch.float32
        num = min(_WINDOW, len(text))
        exact, rough = (self._running(each).along(text, num).double() for each in (better, dtype))
        likely = exact.topk(min(_LIKELY, exact.shape[1])).indices
        errors = (rough - exact).gather(1, likely)
        return float((errors.amax(1) - errors.amin(1)).max())

    def _running(self, dtype: torch.dtype) -> Reference:
        if dtype not in self._in:
            self._in[dtype] = type(self._model)(self._model.name, dtype)
        return self._in[dtype]

    @cached_property
    def told(self) -> str:
        """The definition of a near-tie in this audit."""
        if self._bound is not None:
            return f"near-tie: logits at most {self._bound:g} apart in float32, as given by --bound"
        names = [str(each).removeprefix("torch.") for each in self._precisions]
        low = sorted({name for name in names if name != "float32"})
        return (
            f"near-tie: logits no further apart in float32 than the error of {' and '.join(names)} in the"
            f" difference of two likely logits, measured over the last {_WINDOW} tokens"
        ) + (f"; in {' and '.join(low)}, identical tokens are not guaranteed at near-ties" if low else "")
