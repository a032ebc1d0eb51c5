"""vLLM's CPU sampler for whole drafts in one call, by the kernel of `core.gumbel_sampling`.

Each sampled row has its own seed, which the request's generator draws. Seeds of rows after a rejection are
given back: a generator advances by one seed per output token, as without speculation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform

from forerun.core import gumbel_sampling
from forerun.engines.vllm.stats import logger
from forerun.types import IntArray


def draw_seeds(num: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """The seeds of `num` rows, as vLLM draws them one by one."""
    return torch.randint(0, 2**31, (num,), generator=generator, dtype=torch.long)


def sample_chains(
    logits: torch.Tensor,
    drafts: Sequence[Sequence[int]],
    temperature: torch.Tensor,
    generators: dict[int, torch.Generator],
) -> list[list[int]] | None:
    """The tokens of every request up to its first token that differs from its draft, that token included.

    Equals sampling position by position. Returns None, with all generators as before, if a row has NaN or
    infinite logits.
    """
    lengths = np.array([len(draft) for draft in drafts], dtype=np.int64)
    padded = np.full((len(drafts), lengths.max() + 1), -1, dtype=np.int64)
    for request, draft in enumerate(drafts):
        padded[request, : len(draft)] = draft
    seeds = draw_seeds(padded.size).numpy().reshape(padded.shape)
    states = {}
    for request, generator in generators.items():
        states[request], num = generator.get_state(), len(drafts[request]) + 1
        seeds[request, :num] = draw_seeds(num, generator)
    rows = logits.to(torch.float32).numpy()
    tokens, counts = gumbel_sampling.sample_chains(rows, temperature.numpy(), seeds, lengths, padded)
    is_valid = bool(counts.all())
    for request, generator in generators.items():
        num_used = int(counts[request]) if is_valid else 0
        if num_used <= len(drafts[request]):
            generator.set_state(states[request])
            draw_seeds(num_used, generator)
    if not is_valid:
        return None
    return [row[:num] for row, num in zip(tokens.tolist(), counts.tolist(), strict=True)]


def gumbel_argmax(logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """vLLM's `fused_gumbel_argmax`: the token that each row's seed samples from its logits."""
    no_drafts: IntArray = np.zeros((len(logits), 1), dtype=np.int64)
    tokens, counts = gumbel_sampling.sample_chains(
        logits.numpy(),
        np.ones(len(logits), dtype=np.float32),
        seeds.numpy()[:, None],
        no_drafts[:, 0],
        no_drafts,
    )
    if counts.all():
        return torch.from_numpy(tokens[:, 0])
    stock: torch.Tensor = torch.ops._C.fused_gumbel_argmax(logits, seeds)  # NaN or infinite logits
    return stock


def samples_like_vllm(stock_sampler: Any) -> bool:
    """Whether vLLM's sampler is the one that this module reproduces; compares tokens of random rows."""
    stage = stock_sampler.topk_topp_sampler
    if not current_platform.is_cpu() or stock_sampler.use_fp64_gumbel or stage.forward != stage.forward_cpu:
        return False
    random = torch.Generator().manual_seed(0)
    for num_tokens, scale in ((1000, 1.0), (32768, 5.0)):
        logits = scale * torch.randn(16, num_tokens, generator=random)
        logits[::2, ::3] = -math.inf
        seeds = draw_seeds(len(logits), random)
        if not torch.equal(gumbel_argmax(logits, seeds), torch.ops._C.fused_gumbel_argmax(logits, seeds)):
            logger.warning(
                "Sampling with vLLM's own kernel, position by position: this version of vLLM draws its noise"
                " in another way than forerun's faster kernel"
            )
            return False
    return True


def install_gumbel_argmax(stock_sampler: Any) -> None:
    """Let vLLM's sampler use the faster kernel for batches that set neither top-k nor top-p."""
    stage = stock_sampler.topk_topp_sampler
    stock_forward = stage.forward_cpu

    def forward(logits: torch.Tensor, generators: dict[int, torch.Generator], k: Any, p: Any) -> Any:
        if k is not None or p is not None or stage.logprobs_mode.startswith("processed"):
            return stock_forward(logits, generators, k, p)
        seeds = draw_seeds(len(logits))
        for row, generator in generators.items():
            seeds[row] = draw_seeds(1, generator)
        return gumbel_argmax(logits.to(torch.float32), seeds), None

    stage.forward = forward
