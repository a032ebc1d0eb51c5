"""How often outputs sampled with the same seed may diverge because of rounding.

With the same noise, two servers sample different tokens only where their distributions differ. If they sample
by an exponential race (vLLM) from distributions at total variation distance epsilon, they diverge at a
position with probability at most 2 epsilon / (1 + epsilon). Bettors bet on a higher rate, so the evidence is
an e-value, as in the sampled audit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from forerun.audit.parity.answer_pairs import AnswerPair
from forerun.audit.rounding_error import add_rounding_errors, without_logits_processors
from forerun.audit.sampled.against_model import TokenReader
from forerun.audit.sampled.betting import log_mean_wealth
from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.logits_warper import probabilities

if TYPE_CHECKING:
    from forerun.models.reference import Reference

_RATES: Final = np.array([0.01, 0.03, 0.1, 0.3, 0.9])


def can_emit(model: Reference, read: TokenReader, pair: AnswerPair, sigma: float) -> bool:
    """Whether the candidate's token at the first difference has a positive probability, up to rounding."""
    at = pair.position
    assert at is not None
    prefix, (token,) = read(pair.baseline[:at]), read([pair.differing_tokens()[1]])
    logits = model.after(pair.prompt.ids, [prefix]).float()
    apply_logits_processors(
        logits, BatchSampling.of([pair.sampling]), [RowContext(TokenHistory(pair.prompt.ids), prefix)]
    )
    moved = add_rounding_errors(logits, sigma).flatten(0, 1)
    p = probabilities(moved, BatchSampling.of([without_logits_processors(pair.sampling)] * len(moved)))
    return bool((p[:, token] > 0).any())


def max_divergence_probability(epsilon: float) -> float:
    """The largest divergence rate of distributions at total variation distance epsilon."""
    return 2 * epsilon / (1 + epsilon)


class DivergenceTest:
    """Bets that outputs diverge more often than rounding explains."""

    def __init__(self) -> None:
        self._logs = np.zeros(len(_RATES))

    def observe(self, diverged: bool, probability: float) -> None:
        """Add one position at which both sampled a token after the same prefix."""
        rates = np.maximum(_RATES, probability)
        self._logs += np.log(rates / probability) if diverged else np.log((1 - rates) / (1 - probability))

    @property
    def evidence(self) -> float:
        """The e-value (log10)."""
        return log_mean_wealth(self._logs) / math.log(10)
