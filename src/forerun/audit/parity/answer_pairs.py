"""Pairs of outputs of two servers for the same request, compared up to their first difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forerun.servers.completions import END, Completion, Prompt, Token
from forerun.servers.concurrency import map_concurrent
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams

AnswerSource = Callable[[Prompt, SamplingParams, int], Completion]
"""Produces the output for a request: a server, or a model in this process."""


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """The outputs of the baseline and of the candidate for one request."""

    prompt: Prompt
    sampling: SamplingParams
    baseline: tuple[Token, ...]
    candidate: tuple[Token, ...]
    num_accepted: int | None = None

    @property
    def position(self) -> int | None:
        """The first position at which the outputs differ, if any; the shorter one is padded with `END`."""
        one, other = (self._padded(each) for each in (self.baseline, self.candidate))
        return next((at for at, (x, y) in enumerate(zip(one, other, strict=True)) if x != y), None)

    def _padded(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        longest = max(len(self.baseline), len(self.candidate))
        return tokens + (END,) * (longest - len(tokens))

    def differing_tokens(self) -> tuple[Token, Token]:
        """The first two tokens that differ: the baseline's and the candidate's."""
        at = self.position
        assert at is not None
        return self._padded(self.baseline)[at], self._padded(self.candidate)[at]


def server_source(server: Endpoint) -> AnswerSource:
    """Outputs requested from a server."""
    return lambda prompt, sampling, num_tokens: server.complete(prompt, sampling, num_tokens)[0]


def request_pairs(
    requests: Sequence[tuple[Prompt, SamplingParams]],
    baseline: AnswerSource,
    candidate: AnswerSource,
    max_tokens: int,
    concurrency: int,
) -> Iterator[AnswerPair]:
    """Send every request to both, with `concurrency` requests in flight; pairs keep the order of requests."""

    def send(request: tuple[Prompt, SamplingParams]) -> AnswerPair:
        one, other = baseline(*request, max_tokens), candidate(*request, max_tokens)
        prompt, sampling = request
        ids = prompt.ids or one.prompt_ids or other.prompt_ids
        return AnswerPair(
            Prompt(prompt.text, ids), sampling, one.tokens, other.tokens, num_accepted=other.num_accepted
        )

    return map_concurrent(send, requests, concurrency)
