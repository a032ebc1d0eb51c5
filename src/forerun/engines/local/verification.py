"""Verification of a batch, in which faults stay with their request.

A request whose own logits are broken fails alone. Where only its draft is at fault (its q, or the logits
behind draft tokens), the request decodes without speculation in this step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.config import VerifierName
from forerun.core.tensors import torch
from forerun.core.verify import VerifyRequest, verify
from forerun.engines.guarded_drafter import EMPTY_DRAFT
from forerun.errors import ForerunError, InvalidDistribution
from forerun.types import Verdict


def verify_requests(
    requests: Sequence[VerifyRequest], logits: torch.Tensor, verifier: VerifierName
) -> list[Verdict | ForerunError]:
    """One verdict per request, or the error of that request. The rows of logits are as for `verify`."""
    if not requests:
        return []
    try:
        return list(verify(requests, logits, verifier))
    except ForerunError:  # at least one request is at fault: verify each separately
        sizes = [len(each.draft) + 1 for each in requests]
        return [
            _verify_alone(each, rows, verifier)
            for each, rows in zip(requests, torch.split(logits, sizes), strict=True)
        ]


def _verify_alone(
    each: VerifyRequest, logits: torch.Tensor, verifier: VerifierName
) -> Verdict | ForerunError:
    """The verdict of one request; without its draft, if that is at fault."""
    valid = _valid_rows(logits)
    if not valid[0]:
        return InvalidDistribution("the model's logits are NaN or infinite; check its weights and precision")
    fault: ForerunError | None = None
    without_draft = VerifyRequest(
        EMPTY_DRAFT, each.sampling, each.key, each.length, each.history, each.lenience
    )
    attempts = [(each, logits)] if valid.all() else []
    for request, rows in (*attempts, (without_draft, logits[:1])):
        try:
            return verify([request], rows, verifier)[0]
        except ForerunError as error:
            fault = error
    assert fault is not None
    return fault


def _valid_rows(logits: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows without NaN and +inf that allow at least one token; -inf excludes a token."""
    return torch.isfinite(logits.amax(-1)).numpy(force=True)
