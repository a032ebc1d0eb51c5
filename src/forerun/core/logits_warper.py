"""From logits to p, the target's distribution after a request's sampling settings.

Order as in vLLM: logits processors, temperature, min-p, top-k, top-p. Batched, in float32, with separate
settings per row. Greedy rows become a point mass on the most likely token (Leviathan et al., section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, apply_logits_processors
from forerun.core.nucleus import apply_top_p
from forerun.core.tensors import torch


def probabilities(
    logits: torch.Tensor, settings: BatchSampling, contexts: Sequence[RowContext] = ()
) -> torch.Tensor:
    """p of each row. The logits are unchanged; only rows with penalties or bad words need contexts."""
    warped = logits.float()
    if settings.has_processors.any():
        warped = _ensure_copy(warped, logits)
        apply_logits_processors(warped, settings, contexts or [RowContext()] * len(logits))
    greedy = torch.from_numpy(np.flatnonzero(settings.greedy)).to(warped.device)
    point_mass = _point_mass(warped[greedy])
    if settings.greedy.all():
        return point_mass
    sampled = ~settings.greedy
    if (settings.temperature != 1.0).any():
        warped = warped / _column(settings.temperature, warped)
    if (settings.min_p > 0).any() or (settings.top_k > 0).any():
        warped = _ensure_copy(warped, logits)
        _apply_min_p(warped, np.where(sampled, settings.min_p, 0.0))
        _apply_top_k(warped, np.where(sampled, settings.top_k, 0))
    p = torch.softmax(warped, dim=-1)
    apply_top_p(p, np.where(sampled, settings.top_p, 1.0))
    p[greedy] = point_mass
    return p


def _ensure_copy(warped: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """A copy if the tensor still shares memory with the caller's logits."""
    return warped.clone() if warped.data_ptr() == logits.data_ptr() else warped


def _point_mass(scores: torch.Tensor) -> torch.Tensor:
    """A point mass on the first maximum of each row."""
    return torch.zeros_like(scores).scatter_(1, scores.argmax(-1, keepdim=True), 1.0)


def _apply_min_p(logits: torch.Tensor, min_p: np.ndarray) -> None:
    """min-p: mask tokens whose probability is below min_p times the maximum."""
    rows = torch.from_numpy(np.flatnonzero(min_p > 0)).to(logits.device)
    if len(rows):
        selected = logits[rows]
        p = torch.softmax(selected, dim=-1)
        floor = p.amax(-1, keepdim=True) * _column(min_p[min_p > 0], logits)
        logits[rows] = selected.masked_fill_(p < floor, -torch.inf)


def _apply_top_k(logits: torch.Tensor, top_k: np.ndarray) -> None:
    """top-k: mask tokens below the k-th largest logit; ties with it are kept, as in vLLM."""
    limited = (top_k > 0) & (top_k < logits.shape[1])
    rows = torch.from_numpy(np.flatnonzero(limited)).to(logits.device)
    if len(rows):
        selected, k = logits[rows], torch.from_numpy(top_k[limited]).to(logits.device)
        largest = selected.topk(int(k.max()), dim=-1).values
        logits[rows] = selected.masked_fill_(selected < largest.gather(1, k[:, None] - 1), -torch.inf)


def _column(numbers: np.ndarray, beside: torch.Tensor) -> torch.Tensor:
    """One number per row as a float32 column."""
    return torch.from_numpy(numbers).to(beside.device, torch.float32)[:, None]
