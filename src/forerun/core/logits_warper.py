"""From logits to p: what the target says after a request's sampling settings.

vLLM's order: rules about single tokens, temperature, min-p, top-k, top-p. Batched; float32; every row has
settings of its own. Greedy rows become a point mass on the most likely token (Leviathan et al., 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, apply_logits_processors
from forerun.core.nucleus import keep_nucleus
from forerun.core.tensors import torch


def probabilities(
    logits: torch.Tensor, settings: BatchSampling, contexts: Sequence[RowContext] = ()
) -> torch.Tensor:
    """p of each row. The logits are not changed; contexts are needed only by rows that look back."""
    warped = logits.float()
    if settings.has_processors.any():
        warped = _own(warped, logits)
        apply_logits_processors(warped, settings, contexts or [RowContext()] * len(logits))
    greedy = torch.from_numpy(np.flatnonzero(settings.greedy)).to(warped.device)
    certain = _point_mass(warped[greedy])
    if settings.greedy.all():
        return certain
    drawn = ~settings.greedy
    if (settings.temperature != 1.0).any():
        warped = warped / _column(settings.temperature, warped)
    if (settings.min_p > 0).any() or (settings.top_k > 0).any():
        warped = _own(warped, logits)
        _drop_unlikely(warped, np.where(drawn, settings.min_p, 0.0))
        _keep_top_k(warped, np.where(drawn, settings.top_k, 0))
    p = torch.softmax(warped, dim=-1)
    keep_nucleus(p, np.where(drawn, settings.top_p, 1.0))
    p[greedy] = certain
    return p


def _own(warped: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """A copy, if these still are the caller's logits."""
    return warped.clone() if warped.data_ptr() == logits.data_ptr() else warped


def _point_mass(scores: torch.Tensor) -> torch.Tensor:
    """All of p on the first of the most likely tokens."""
    return torch.zeros_like(scores).scatter_(1, scores.argmax(-1, keepdim=True), 1.0)


def _drop_unlikely(logits: torch.Tensor, min_p: np.ndarray) -> None:
    """min-p: forbid tokens less likely than min_p times the most likely one."""
    rows = torch.from_numpy(np.flatnonzero(min_p > 0)).to(logits.device)
    if len(rows):
        some = logits[rows]
        p = torch.softmax(some, dim=-1)
        floor = p.amax(-1, keepdim=True) * _column(min_p[min_p > 0], logits)
        logits[rows] = some.masked_fill_(p < floor, -torch.inf)


def _keep_top_k(logits: torch.Tensor, top_k: np.ndarray) -> None:
    """top-k: forbid tokens below the k-th largest logit; its equals stay, as in vLLM."""
    limited = (top_k > 0) & (top_k < logits.shape[1])
    rows = torch.from_numpy(np.flatnonzero(limited)).to(logits.device)
    if len(rows):
        some, k = logits[rows], torch.from_numpy(top_k[limited]).to(logits.device)
        largest = some.topk(int(k.max()), dim=-1).values
        logits[rows] = some.masked_fill_(some < largest.gather(1, k[:, None] - 1), -torch.inf)


def _column(numbers: np.ndarray, beside: torch.Tensor) -> torch.Tensor:
    """A number per row, as a float32 column."""
    return torch.from_numpy(numbers).to(beside.device, torch.float32)[:, None]
