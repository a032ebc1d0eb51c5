"""Which guesses pay, when every one makes a step dearer by the same share."""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.drafters.tree import SURVIVAL
from forerun.types import Draft

TYPICAL: Final = 0.012
"""What a guess cost, as a share of a step, where decoding waits for memory (SmolLM2 on two cores)."""


def worth(draft: Draft, price: float) -> Draft:
    """The first nodes of a draft, as long as each brings more tokens than its price costs on average.

    Nodes must come in the order of their estimated survival, as trees grown from sightings do. Guesses that
    were drawn stay as they are: none of them may be dropped for its value.
    """
    if draft.evidence is None or draft.sampled.any():
        return draft
    survival = draft.evidence[:, SURVIVAL]
    tokens = 1.0 + np.cumsum(survival) - survival
    cost = 1.0 + price * np.arange(len(draft))
    keep = int(np.argmin(np.append(survival * cost > price * tokens, False)))
    return draft.first(keep)
