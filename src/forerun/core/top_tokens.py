"""The likeliest tokens of rows of logits, with their probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forerun.core.tensors import torch
from forerun.types import Float32Array


def top_tokens(logits: torch.Tensor, num: int) -> tuple[npt.NDArray[np.int32], Float32Array]:
    """The `num` likeliest tokens of each row, most likely first, and their probabilities at temperature 1."""
    values, tokens = logits.topk(min(num, logits.shape[-1]), dim=-1)
    probs = (values.float() - logits.float().logsumexp(-1, keepdim=True)).exp()
    return tokens.int().numpy(force=True), probs.numpy(force=True)
