"""q of several kinds of drafts at each position of an output: Leviathan et al., sections 3.6 and 4.2.

A row of zeros stands for a position at which nothing is drafted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch

from forerun.engines.guarded_drafter import EMPTY_DRAFT
from forerun.engines.top_token_rows import top_tokens_of
from forerun.models.runner import Runner
from forerun.theory.target_text import TargetText, output_logits, standardize
from forerun.types import Drafter, LogitsDrafter, RequestView, SamplingParams, Verdict


class DraftDistribution(Protocol):
    """A kind of draft that can say its q at every position of an output."""

    name: str

    def rows(self, text: TargetText, logits: torch.Tensor) -> torch.Tensor:
        """q at each position, [tokens, vocabulary]; `logits` are those of the target."""


class ModelDistribution:
    """q of a draft model at the temperature of the text."""

    def __init__(self, name: str, runner: Runner, vocab_size: int) -> None:
        self.name = name
        self._runner = runner
        self._vocab_size = vocab_size

    def rows(self, text: TargetText, logits: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """q at each position; the vocabularies may differ by padding."""
        own = output_logits(self._runner, text)
        missing = self._vocab_size - own.shape[1]
        if missing > 0:
            own = torch.nn.functional.pad(own, (0, missing), value=-torch.inf)
        return standardize(own[:, : self._vocab_size], text.temperature)


class LookupDistribution:
    """A lookup drafter: q is a point mass on the token that it proposes at a position."""

    def __init__(self, name: str, drafter: Drafter) -> None:
        self.name = name
        self._drafter = drafter

    def rows(self, text: TargetText, logits: torch.Tensor) -> torch.Tensor:
        """q at each position. A drafter that learns from logits sees those of the output, but not those of
        rejected draft tokens, as it would in an engine.
        """
        q = torch.zeros_like(logits)
        tokens, num_prompt = list(text.prompt.tokens), len(text.prompt.tokens)
        view = RequestView("text", tokens, num_prompt, sampling=SamplingParams(text.temperature))
        for row, token in enumerate(text.output):
            (draft,) = self._drafter.propose([view], [1])
            if len(draft):
                q[row, int(draft.tokens[0])] = 1.0
            if isinstance(self._drafter, LogitsDrafter):
                top_tokens = top_tokens_of({0}, [tokens], [EMPTY_DRAFT], logits[row : row + 1])[0]
                self._drafter.learn_logits(view.id, top_tokens)
            self._drafter.learn(view.id, draft, Verdict((), token))
            tokens.append(token)
        self._drafter.forget(view.id)
        return q


class UniformDistribution:
    """Tokens at random: the same q everywhere, at every temperature."""

    name = "uniform"

    def rows(self, text: TargetText, logits: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """q at each position."""
        return torch.full_like(logits, 1.0 / logits.shape[1])


class CountedDistribution:
    """Unigrams or bigrams, counted in the prompts and outputs of all other texts.

    After a token that no other text has, bigrams fall back to unigrams.
    """

    def __init__(self, name: str, texts: Sequence[TargetText], *, bigrams: bool) -> None:
        self.name = name
        self._bigrams = bigrams
        self._unigram_counts = Counter(token for text in texts for token in _all_tokens(text))
        self._bigram_counts = Counter(pair for text in texts for pair in _pairs(text))

    def rows(self, text: TargetText, logits: torch.Tensor) -> torch.Tensor:
        """q at each position."""
        unigrams = self._unigram_counts - Counter(_all_tokens(text))
        by_token: dict[int, dict[int, int]] = {}
        if self._bigrams:
            before = {token for token, _ in _pairs(text)}
            for (first, second), count in (self._bigram_counts - Counter(_pairs(text))).items():
                if first in before:
                    by_token.setdefault(first, {})[second] = count
        start = len(text.prompt.tokens) - 1
        everywhere = _log_counts(unigrams, logits.shape[1])
        found = torch.stack(
            [
                _log_counts(by_token[token], logits.shape[1]) if token in by_token else everywhere
                for token in _all_tokens(text)[start:-1]
            ]
        )
        return standardize(found, text.temperature)


def _all_tokens(text: TargetText) -> tuple[int, ...]:
    return (*text.prompt.tokens, *text.output)


def _pairs(text: TargetText) -> list[tuple[int, int]]:
    tokens = _all_tokens(text)
    return [*pairwise(tokens)]


def _log_counts(counts: dict[int, int] | Counter[int], vocab_size: int) -> torch.Tensor:
    """Counts as logits; without any count, uniform ones."""
    if not counts:
        return torch.zeros(vocab_size)
    logits = torch.full((vocab_size,), -torch.inf)
    logits[torch.tensor(list(counts))] = torch.tensor(list(counts.values()), dtype=torch.float32).log()
    return logits
