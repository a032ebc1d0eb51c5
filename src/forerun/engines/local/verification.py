"""Which guesses stand, and whose fault it is if that cannot be said.

A request whose own logits are broken fails alone. Where only a guess is at fault (its distribution, or the
logits behind it), it is as if nobody had guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.tensors import torch
from forerun.core.verify import Verifier, VerifyRequest, verify
from forerun.engines.guarded_drafter import NOTHING
from forerun.errors import ForerunError, InvalidDistribution
from forerun.types import Verdict


def verify_requests(
    rounds: Sequence[VerifyRequest], logits: torch.Tensor, verifier: Verifier
) -> list[Verdict | ForerunError]:
    """The verdict of every request, or why there is none. Rows of logits are as for `verify`."""
    if not rounds:
        return []
    try:
        return list(verify(rounds, logits, verifier))
    except ForerunError:  # somebody is at fault: each by itself
        sizes = [len(each.draft) + 1 for each in rounds]
        return [
            _judge_alone(each, rows, verifier)
            for each, rows in zip(rounds, torch.split(logits, sizes), strict=True)
        ]


def _judge_alone(each: VerifyRequest, logits: torch.Tensor, verifier: Verifier) -> Verdict | ForerunError:
    """The verdict of one request; without its guesses, if those are at fault."""
    sound = _sound(logits)
    if not sound[0]:
        return InvalidDistribution(
            "the model gave no probabilities: its logits are NaN or infinite; check its weights and precision"
        )
    fault: ForerunError | None = None
    plain = VerifyRequest(NOTHING, each.sampling, each.key, each.length, each.history, each.lenience)
    for some, rows in (*(((each, logits),) if sound.all() else ()), (plain, logits[:1])):
        try:
            return verify([some], rows, verifier)[0]
        except ForerunError as error:
            fault = error
    assert fault is not None
    return fault


def _sound(logits: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows are numbers, with something that can be said; -inf is for what cannot."""
    return torch.isfinite(logits.amax(-1)).numpy(force=True)
