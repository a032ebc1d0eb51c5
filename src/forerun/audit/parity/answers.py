"""Two servers' answers to the same requests, side by side, up to where they first part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forerun.servers.endpoint import END, Answer, Endpoint, Prompt, Token
from forerun.servers.together import ask_together
from forerun.types import SamplingParams

Speaker = Callable[[Prompt, SamplingParams, int], Answer]
"""Who answers: a server, or a model in this process."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one request. `at` is where they first differ, if they do."""

    prompt: Prompt
    sampling: SamplingParams
    plain: tuple[Token, ...]
    tested: tuple[Token, ...]
    num_accepted: int | None = None

    @property
    def at(self) -> int | None:
        """The first position at which the answers differ; one that ends early ends with `END`."""
        one, other = (self._ended(each) for each in (self.plain, self.tested))
        return next((at for at, (x, y) in enumerate(zip(one, other, strict=True)) if x != y), None)

    def _ended(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        longest = max(len(self.plain), len(self.tested))
        return tokens + (END,) * (longest - len(tokens))

    def parting(self) -> tuple[Token, Token]:
        """The two tokens that differ, the plain one first."""
        at = self.at
        assert at is not None
        return self._ended(self.plain)[at], self._ended(self.tested)[at]


def speaker_of(server: Endpoint) -> Speaker:
    """A server's way to answer."""
    return lambda prompt, sampling, num_tokens: server.complete(prompt, sampling, num_tokens)[0]


def ask_both(
    requests: Sequence[tuple[Prompt, SamplingParams]],
    plain: Speaker,
    tested: Speaker,
    num_tokens: int,
    at_once: int,
) -> Iterator[Pair]:
    """Ask both for every request, so many at once; pairs come in the order of the requests."""

    def ask(request: tuple[Prompt, SamplingParams]) -> Pair:
        one, other = plain(*request, num_tokens), tested(*request, num_tokens)
        prompt, sampling = request
        ids = prompt.ids or one.prompt_ids or other.prompt_ids
        return Pair(
            Prompt(prompt.text, ids), sampling, one.tokens, other.tokens, num_accepted=other.num_accepted
        )

    return ask_together(ask, requests, at_once)
