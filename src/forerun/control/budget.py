"""How far to guess in a step: as far as tokens per second grow.

All requests of a batch share one pass, so their guesses compete for its rows: the likeliest first, whoever's
they are. No guess at all is always a choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.control.cost import StepCost
from forerun.drafters.tree import SURVIVAL
from forerun.types import Draft, FloatArray


def spend(drafts: Sequence[Draft], trusts: Sequence[float], cost: StepCost, num_rows: int) -> list[Draft]:
    """The first nodes of each draft, so many that the batch says the most tokens per second.

    The pass has `num_rows` rows without any guess. `trusts` are factors for the estimated survivals, by which
    chosen nodes must be ordered, and they come after drawn ones. Drawn guesses stay as they are: none may be
    dropped for its value. So do guesses of which nothing is estimated.
    """
    fixed = [len(draft) if draft.evidence is None else _num_fixed(draft) for draft in drafts]
    survivals = [
        np.minimum(trust * draft.evidence[num:, SURVIVAL], 1.0) if draft.evidence is not None else _NONE
        for draft, trust, num in zip(drafts, trusts, fixed, strict=True)
    ]
    owners = np.repeat(np.arange(len(drafts)), [len(each) for each in survivals])
    order = np.argsort(-np.concatenate([_NONE, *survivals]), kind="stable")
    tokens = len(drafts) + np.cumsum(np.concatenate([[0.0], *survivals])[np.append(0, order + 1)])
    fewest = num_rows + sum(fixed)
    seconds = cost(np.arange(fewest, fewest + len(order) + 1, dtype=np.float64))
    best = int(np.argmax(tokens / seconds))
    taken = np.bincount(owners[order[:best]], minlength=len(drafts))
    return [draft.first(num + more) for draft, num, more in zip(drafts, fixed, taken.tolist(), strict=True)]


def _num_fixed(draft: Draft) -> int:
    """The nodes up to the last that was drawn."""
    drawn = np.flatnonzero(draft.sampled)
    return int(drawn[-1]) + 1 if len(drawn) else 0


_NONE: FloatArray = np.zeros(0)
