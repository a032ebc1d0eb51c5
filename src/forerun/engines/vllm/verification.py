"""Requests whose guesses are judged against a distribution: drawn by the draft model, or leniently.

Everybody else is followed. Here vLLM's own sampler is asked for p instead of a token, and `forerun.core`
decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from forerun.core.verify import Verifier, VerifyRequest, verify
from forerun.engines.vllm.stats import logger
from forerun.types import Draft, Proposal, SamplingParams


@dataclass(slots=True)
class RejectionRequest:
    """One request: its guesses, the q they were drawn from (None: they were chosen), and p row by row."""

    guess: Sequence[int]
    q: torch.Tensor | None
    greedy: bool
    lenience: float
    p: list[torch.Tensor] = field(default_factory=list)
    plain: int = -1
    """What plain sampling says at the first position."""

    def see(self, position: int, p: torch.Tensor, taken: int) -> int:
        """The next position: what plain sampling draws from, and what it drew. Returns the guess, which
        counts as said until the verdict.
        """
        if position == 0:
            self.plain = taken
        self.p.append(p)
        return self.guess[position] if position < len(self.guess) else taken

    def round(self) -> VerifyRequest:
        """This request's part in the verdict; its noise has a key of its own, from vLLM's stream."""
        key = int(torch.randint(2**62, (1,)))
        q = [] if self.q is None else [Proposal(row) for row in self.q]
        sampling = SamplingParams(temperature=0.0 if self.greedy else 1.0)  # the rest is in p already
        return VerifyRequest(Draft.chain(self.guess, q=q), sampling, key, 0, lenience=self.lenience)


def verify_requests(judged: Sequence[RejectionRequest], verifier: Verifier) -> list[list[int]]:
    """What every one of these requests says.

    Where p is no distribution (a model that went astray), a request says what plain sampling says.
    """
    if not judged:
        return []
    rounds = [each.round() for each in judged]
    try:
        verdicts = verify(rounds, torch.cat([torch.stack(each.p) for each in judged]), verifier)
    except ValueError:
        logger.exception("the verdict failed; these requests say one token each, as plain sampling draws it")
        return [[each.plain] for each in judged]
    return [verdict.tokens(each.draft) for verdict, each in zip(verdicts, rounds, strict=True)]


def is_distribution(q: torch.Tensor) -> bool:
    """Whether every row can be something that tokens were drawn from."""
    return bool(q.isfinite().all() and (q >= 0).all() and (q.sum(-1) - 1).abs().max() < 1e-2)


def weights(plain: Any, logits: torch.Tensor, sampling: SamplingMetadata) -> torch.Tensor:
    """The logits that vLLM's sampler draws from: its own modules, in its own order, up to the draw."""
    logits = plain.apply_logits_processors(logits.to(torch.float32), sampling, False)
    if sampling.temperature is not None:
        logits = plain.apply_temperature(logits, sampling.temperature, sampling.all_random)
    for processor in sampling.logitsprocs.argmax_invariant:
        logits = processor.apply(logits)
    result: torch.Tensor = apply_top_k_top_p(logits, sampling.top_k, sampling.top_p)
    return result
