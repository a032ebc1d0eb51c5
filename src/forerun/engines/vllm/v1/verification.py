"""Rejection sampling for requests whose draft tokens were sampled from q, or that allow lenience.

All other requests use `match_target`. vLLM's own sampler supplies p instead of a token, and `forerun.core`
decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from forerun.config import VerifierName
from forerun.core.verify import VerifyRequest, verify
from forerun.engines.vllm.stats import logger
from forerun.types import Draft, Proposal, SamplingParams


@dataclass(slots=True)
class RejectionRequest:
    """One request: its draft tokens, the q they were sampled from (None: chosen), and p row by row."""

    draft: Sequence[int]
    q: torch.Tensor | None
    greedy: bool
    lenience: float
    p: list[torch.Tensor] = field(default_factory=list)
    fallback: int = -1
    """The token that vLLM's sampler takes at the first position."""

    def observe(self, position: int, p: torch.Tensor, sampled: int) -> int:
        """Record p and vLLM's token of the next position.

        Returns the draft token, which is part of the context until verification.
        """
        if position == 0:
            self.fallback = sampled
        self.p.append(p)
        return self.draft[position] if position < len(self.draft) else sampled

    def to_verify_request(self) -> VerifyRequest:
        """The input of `forerun.core`'s verification; the noise key comes from vLLM's random stream."""
        key = int(torch.randint(2**62, (1,)))
        q = [] if self.q is None else [Proposal(row) for row in self.q]
        sampling = SamplingParams(temperature=0.0 if self.greedy else 1.0)  # p includes the other settings
        return VerifyRequest(Draft.chain(self.draft, q=q), sampling, key, 0, lenience=self.lenience)


def verify_requests(requests: Sequence[RejectionRequest], verifier: VerifierName) -> list[list[int]]:
    """The output tokens of every request.

    If p is not a distribution (a model with NaN logits), each request emits vLLM's token.
    """
    if not requests:
        return []
    inputs = [each.to_verify_request() for each in requests]
    try:
        verdicts = verify(inputs, torch.cat([torch.stack(each.p) for each in requests]), verifier)
    except ValueError:
        logger.exception("Verification failed: emitting one non-speculative token for each request")
        return [[each.fallback] for each in requests]
    return [verdict.tokens(each.draft) for verdict, each in zip(verdicts, inputs, strict=True)]


def is_distribution(q: torch.Tensor) -> bool:
    """Whether every row is finite, non-negative and sums to 1 within 0.01."""
    return bool(q.isfinite().all() and (q >= 0).all() and (q.sum(-1) - 1).abs().max() < 1e-2)


def target_logits(stock_sampler: Any, logits: torch.Tensor, sampling: SamplingMetadata) -> torch.Tensor:
    """The logits that vLLM's sampler samples from, computed by its own modules in its own order."""
    logits = stock_sampler.apply_logits_processors(logits.to(torch.float32), sampling, False)
    if sampling.temperature is not None:
        logits = stock_sampler.apply_temperature(logits, sampling.temperature, sampling.all_random)
    for processor in sampling.logitsprocs.argmax_invariant:
        logits = processor.apply(logits)
    result: torch.Tensor = apply_top_k_top_p(logits, sampling.top_k, sampling.top_p)
    return result
