"""Sampled with the same seed: how often may honest servers part?

The same noise picks another token only where the two laws differ, and two servers whose laws are epsilon
apart part at a place with a chance of at most 2 epsilon / (1 + epsilon), if they pick as a race does (vLLM).
Bettors bet that it is more often, so the evidence is an e-value, as in the sampled audit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from forerun.audit.parity.answer_pairs import AnswerPair
from forerun.audit.rounding_error import rounded, without_rules
from forerun.audit.sampled.against_model import TokenReader
from forerun.audit.sampled.betting import wealth
from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.logits_warper import probabilities

if TYPE_CHECKING:
    from forerun.models.reference import Reference

_RATES: Final = np.array([0.01, 0.03, 0.1, 0.3, 0.9])


def can_say(model: Reference, read: TokenReader, pair: AnswerPair, sigma: float) -> bool:
    """Whether the token that the tested server said, where the answers part, is one it may say at all."""
    at = pair.at
    assert at is not None
    path, (token,) = read(pair.baseline[:at]), read([pair.parting()[1]])
    logits = model.after(pair.prompt.ids, [path]).float()
    apply_logits_processors(
        logits, BatchSampling.of([pair.sampling]), [RowContext(TokenHistory(pair.prompt.ids), path)]
    )
    moved = rounded(logits, sigma).flatten(0, 1)
    p = probabilities(moved, BatchSampling.of([without_rules(pair.sampling)] * len(moved)))
    return bool((p[:, token] > 0).any())


def parting_chance(epsilon: float) -> float:
    """How often laws that are epsilon apart part, at the most."""
    return 2 * epsilon / (1 + epsilon)


class DivergenceTest:
    """The wealth of those who bet that answers part more often than rounding explains."""

    def __init__(self) -> None:
        self._logs = np.zeros(len(_RATES))

    def hear(self, parted: bool, chance: float) -> None:
        """One more token that both said after the same text."""
        rates = np.maximum(_RATES, chance)
        self._logs += np.log(rates / chance) if parted else np.log((1 - rates) / (1 - chance))

    @property
    def evidence(self) -> float:
        """The logarithm (base 10) of what they own."""
        return wealth(self._logs) / math.log(10)
