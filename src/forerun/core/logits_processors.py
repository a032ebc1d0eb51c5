"""Logits processors: allowed tokens, bad words, logit bias and penalties.

Order and semantics are vLLM's: allowed tokens, bad words, logit bias, then repetition, frequency and presence
penalties. The repetition penalty covers prompt and output; frequency and presence penalties and bad words
cover the output only. At a draft position, the draft tokens on the path before it count as output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from forerun.core.batch_sampling import BatchSampling
from forerun.core.tensors import torch
from forerun.errors import InvalidSampling
from forerun.types import SamplingParams


@dataclass(frozen=True)
class TokenHistory:
    """A request's prompt and output at one point in time.

    Token counts are computed once and shared by all rows. Longer output needs a new history. Only requests
    with penalties or bad words need one.
    """

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
        object.__setattr__(self, "output", tuple(self.output))

    @cached_property
    def output_counts(self) -> Counter[int]:
        """Number of occurrences of each token in the output."""
        return Counter(self.output)

    @cached_property
    def prompt_tokens(self) -> frozenset[int]:
        """The set of prompt tokens."""
        return frozenset(self.prompt)


@dataclass(frozen=True)
class RowContext:
    """The tokens before a row: its request's history, then the draft tokens between history and row."""

    history: TokenHistory = field(default_factory=TokenHistory)
    path: Sequence[int] = ()


def apply_logits_processors(
    logits: torch.Tensor, settings: BatchSampling, contexts: Sequence[RowContext]
) -> None:
    """Apply the processors of each row in place."""
    rows = np.flatnonzero(settings.has_processors).tolist()
    for params in {id(settings.params[row]): settings.params[row] for row in rows}.values():
        check_token_ids(params, logits.shape[1])
    for row in rows:
        params, context = settings.params[row], contexts[row]
        if params.allowed_token_ids is not None:
            _allow_only(logits[row], params.allowed_token_ids)
        for word in params.bad_words:
            if _ends_with(context, word[:-1]):
                logits[row, word[-1]] = -torch.inf
        if params.logit_bias:
            tokens = torch.tensor(list(params.logit_bias), device=logits.device)
            logits[row, tokens] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
        _apply_penalties(logits[row], params, context)


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise if a setting names a token outside the vocabulary."""
    named = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words": [word[-1] for word in params.bad_words],
    }
    for setting, tokens in named.items():
        unknown = [token for token in tokens if not 0 <= token < vocab_size]
        if unknown:
            raise InvalidSampling(
                f"{setting} contains token {unknown[0]}; the vocabulary has {vocab_size} tokens"
            )


def _allow_only(row: torch.Tensor, tokens: Sequence[int]) -> None:
    """Set the logits of all other tokens to -inf."""
    index = torch.tensor(tokens, device=row.device)
    allowed = row[index]
    row.fill_(-torch.inf)
    row[index] = allowed


def _ends_with(context: RowContext, ending: Sequence[int]) -> bool:
    """Whether the output, including draft tokens, ends with these tokens."""
    length = len(ending)
    recent = [*context.history.output[-length:], *context.path][-length:] if length else []
    return list(recent) == list(ending)


def _apply_penalties(row: torch.Tensor, params: SamplingParams, context: RowContext) -> None:
    """Apply repetition, frequency and presence penalties; touches only the entries of seen tokens.

    Token ids beyond the vocabulary (placeholders in some prompts) are skipped.
    """
    counts = {
        x: n for x, n in (context.history.output_counts + Counter(context.path)).items() if x < len(row)
    }
    if params.repetition_penalty != 1.0:
        prompt = {x for x in context.history.prompt_tokens if x < len(row)}
        seen = torch.tensor(sorted(prompt | set(counts)), dtype=torch.long, device=row.device)
        penalty = torch.tensor(params.repetition_penalty, device=row.device)
        logits = row[seen]
        row[seen] = logits * torch.where(logits > 0, 1.0 / penalty, penalty)
    if counts and (params.frequency_penalty or params.presence_penalty):
        repeated = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), device=row.device)
        row[repeated] -= params.frequency_penalty * times
        row[repeated] -= params.presence_penalty
