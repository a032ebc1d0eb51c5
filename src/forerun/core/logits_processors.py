"""Rules about single tokens: allowed and forbidden ones, bias, and penalties for what was said before.

vLLM's order and meaning: allowed tokens, bad words, logit bias, then repetition, frequency and presence
penalties. Repetition looks at the prompt and the output; the other two, and bad words, at the output
alone. At a guessed position the guesses before it count as output.
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
    """What a request has said so far: its prompt and its output, as they are now.

    Counted once, however many rows ask; later tokens need a new one. Only requests that look back need any.
    """

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
        object.__setattr__(self, "output", tuple(self.output))

    @cached_property
    def output_counts(self) -> Counter[int]:
        """How often each token occurs in the output."""
        return Counter(self.output)

    @cached_property
    def prompt_tokens(self) -> frozenset[int]:
        """The tokens of the prompt."""
        return frozenset(self.prompt)


@dataclass(frozen=True)
class RowContext:
    """Where a row stands: its request's history, and the guesses between that and the row."""

    history: TokenHistory = field(default_factory=TokenHistory)
    path: Sequence[int] = ()


def apply_logits_processors(
    logits: torch.Tensor, settings: BatchSampling, contexts: Sequence[RowContext]
) -> None:
    """Change the logits of the rows that have rules, in place."""
    rows = np.flatnonzero(settings.has_processors).tolist()
    for params in {id(settings.params[row]): settings.params[row] for row in rows}.values():
        check_token_ids(params, logits.shape[1])
    for row in rows:
        params, context = settings.params[row], contexts[row]
        if params.allowed_token_ids is not None:
            _allow(logits[row], params.allowed_token_ids)
        for word in params.bad_words:
            if _ends_with(context, word[:-1]):
                logits[row, word[-1]] = -torch.inf
        if params.logit_bias:
            tokens = torch.tensor(list(params.logit_bias), device=logits.device)
            logits[row, tokens] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
        _penalise(logits[row], params, context)


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise where settings name a token that does not exist."""
    named = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words": [word[-1] for word in params.bad_words],
    }
    for setting, tokens in named.items():
        unknown = [token for token in tokens if not 0 <= token < vocab_size]
        if unknown:
            raise InvalidSampling(f"{setting} names token {unknown[0]}; the vocabulary has {vocab_size}")


def _allow(row: torch.Tensor, tokens: Sequence[int]) -> None:
    """Forbid every token but these."""
    index = torch.tensor(tokens, device=row.device)
    kept = row[index]
    row.fill_(-torch.inf)
    row[index] = kept


def _ends_with(context: RowContext, ending: Sequence[int]) -> bool:
    """Whether the output, guesses included, ends with these tokens."""
    length = len(ending)
    said = [*context.history.output[-length:], *context.path][-length:] if length else []
    return list(said) == list(ending)


def _penalise(row: torch.Tensor, params: SamplingParams, context: RowContext) -> None:
    """Push down what was said before; only the entries of those tokens are touched.

    Tokens beyond the vocabulary (placeholders of some prompts) cannot be said and are passed over.
    """
    counts = {
        x: n for x, n in (context.history.output_counts + Counter(context.path)).items() if x < len(row)
    }
    if params.repetition_penalty != 1.0:
        before = {x for x in context.history.prompt_tokens if x < len(row)}
        seen = torch.tensor(sorted(before | set(counts)), dtype=torch.long, device=row.device)
        penalty = torch.tensor(params.repetition_penalty, device=row.device)
        logits = row[seen]
        row[seen] = logits * torch.where(logits > 0, 1.0 / penalty, penalty)
    if counts and (params.frequency_penalty or params.presence_penalty):
        said = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), device=row.device)
        row[said] -= params.frequency_penalty * times
        row[said] -= params.presence_penalty
