"""Two servers' answers to the same requests, side by side, up to where they first part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forerun.servers.concurrency import map_concurrent
from forerun.servers.endpoint import END, Completion, Endpoint, Prompt, Token
from forerun.types import SamplingParams

AnswerSource = Callable[[Prompt, SamplingParams, int], Completion]
"""Who answers: a server, or a model in this process."""


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Two answers to one request. `at` is where they first differ, if they do."""

    prompt: Prompt
    sampling: SamplingParams
    baseline: tuple[Token, ...]
    candidate: tuple[Token, ...]
    num_accepted: int | None = None

    @property
    def at(self) -> int | None:
        """The first position at which the answers differ; one that ends early ends with `END`."""
        one, other = (self._ended(each) for each in (self.baseline, self.candidate))
        return next((at for at, (x, y) in enumerate(zip(one, other, strict=True)) if x != y), None)

    def _ended(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        longest = max(len(self.baseline), len(self.candidate))
        return tokens + (END,) * (longest - len(tokens))

    def parting(self) -> tuple[Token, Token]:
        """The two tokens that differ, the plain one first."""
        at = self.at
        assert at is not None
        return self._ended(self.baseline)[at], self._ended(self.candidate)[at]


def speaker_of(server: Endpoint) -> AnswerSource:
    """A server's way to answer."""
    return lambda prompt, sampling, num_tokens: server.complete(prompt, sampling, num_tokens)[0]


def ask_both(
    requests: Sequence[tuple[Prompt, SamplingParams]],
    plain: AnswerSource,
    tested: AnswerSource,
    num_tokens: int,
    at_once: int,
) -> Iterator[AnswerPair]:
    """Ask both for every request, so many at once; pairs come in the order of the requests."""

    def ask(request: tuple[Prompt, SamplingParams]) -> AnswerPair:
        one, other = plain(*request, num_tokens), tested(*request, num_tokens)
        prompt, sampling = request
        ids = prompt.ids or one.prompt_ids or other.prompt_ids
        return AnswerPair(
            Prompt(prompt.text, ids), sampling, one.tokens, other.tokens, num_accepted=other.num_accepted
        )

    return map_concurrent(ask, requests, at_once)
