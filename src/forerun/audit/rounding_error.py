"""How much of a difference a server's arithmetic alone may make: epsilon, measured and never zero.

A server rounds, and rounds differently when a batch changes shape. How much is read from its own
log-probabilities, of answers of one token, which no speculation can touch: sigma, the typical error of a
logit. What that does to a law depends on the settings (a tie at the edge of a top-k moves a whole token), so
epsilon at a place is the largest change that errors of that size were seen to make there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_warper import probabilities
from forerun.core.tensors import HAS_TORCH, torch
from forerun.errors import MissingExtra, UnreadableAnswer
from forerun.servers.endpoint import Completion, Endpoint, Prompt, Token
from forerun.types import FloatArray, SamplingParams

FLOOR: Final = 0.001
"""The smallest epsilon: agreement to the last bit is nothing a server promises."""

_CEILING: Final = 0.5
_CREDIBLE: Final = 0.5
"""Log-probabilities that are further off than this were not rounded: they are another model's."""

NUM_LOGPROBS: Final = 20
_NUM_ERRORS: Final = 8
_NUM_LIKELY: Final = 256
_RELEVANT: Final = -9.2
"""Log-probabilities below this (1 in 10,000) do not say how well the likely ones are computed."""

_NEUTRAL: Final = SamplingParams()


def epsilons(logits: torch.Tensor, sampling: SamplingParams, sigma: float) -> FloatArray:
    """For each row of logits (after rules about single tokens) how far rounding may move the law."""
    bare = without_rules(sampling)
    likely = logits.topk(min(_NUM_LIKELY, logits.shape[1])).values.float()
    near = rounded(likely, sigma)
    flat = near.flatten(0, 1)
    p = probabilities(likely, BatchSampling.of([bare] * len(likely)))
    moved = probabilities(flat, BatchSampling.of([bare] * len(flat))).view_as(near)
    most: FloatArray = ((moved - p).abs().sum(-1).amax(0) / 2).double().numpy()
    return np.asarray(np.clip(most, FLOOR, _CEILING))


def without_rules(sampling: SamplingParams) -> SamplingParams:
    """The settings that are left when rules about single tokens have been applied."""
    return replace(
        sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias={}
    )


def rounded(logits: torch.Tensor, sigma: float) -> torch.Tensor:
    """Logits [errors, rows, vocabulary] with errors of that size, always the same ones."""
    generator = torch.Generator().manual_seed(logits.shape[1])
    return logits + sigma * torch.randn(_NUM_ERRORS, *logits.shape, generator=generator)


def error_of(one: Mapping[Token, float], other: Mapping[Token, float]) -> float | None:
    """The typical difference between two lists of log-probabilities of one place; None if none compares."""
    shared = [token for token in one if token in other and one[token] > _RELEVANT]
    errors = np.array([one[token] - other[token] for token in shared])
    errors = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else None


def largest(errors: Iterable[float | None]) -> float:
    """sigma, from what was measured at some places."""
    known = [error for error in errors if error is not None]
    if not known:
        raise UnreadableAnswer(
            "the server shows no log-probabilities that can be compared, so how much it rounds is not known:"
            " say it, with --epsilon"
        )
    if max(known) > _CREDIBLE:
        raise UnreadableAnswer(
            f"the server's own log-probabilities are off by {max(known):.2g}, which no rounding explains: is"
            " it this model, in this precision? If it is, say what to allow, with --epsilon"
        )
    return max(known)


def ask_logprobs(
    server: Endpoint, prompt: Prompt, path: Sequence[int] = (), num: int = NUM_LOGPROBS
) -> dict[Token, float]:
    """The server's own log-probabilities of the token after a prompt and a path."""
    longer = replace(prompt, ids=(*prompt.ids, *path)) if path else prompt
    (answer,) = server.complete(longer, _NEUTRAL, 1, num_logprobs=num)
    return answer.logprobs[0] if answer.logprobs else {}


def error_against_model(
    server: Endpoint, prompt: Prompt, paths: Sequence[Sequence[int]], logits: torch.Tensor
) -> float:
    """sigma: the largest over some places of the typical error of a server's logits; [paths, vocabulary]."""
    expected = torch.log_softmax(logits.double(), dim=-1)
    errors = []
    for row, path in enumerate(paths):
        said = ask_logprobs(server, prompt, path, min(NUM_LOGPROBS, logits.shape[1]))
        known: dict[Token, float] = {
            token: float(expected[row, token])
            for token in said
            if isinstance(token, int) and 0 <= token < expected.shape[1]
        }
        errors.append(error_of(known, said))
    return largest(errors)


@dataclass(frozen=True, slots=True)
class OwnError:
    """How well a server agrees with itself, and what was seen on the way."""

    sigma: float
    places: tuple[dict[Token, float], ...]
    prompt_ids: tuple[int, ...]

    def epsilon(self, sampling: SamplingParams) -> float:
        """The largest epsilon over the places, of which only the likeliest log-probabilities are known."""
        rows = [list(place.values()) for place in self.places if len(place) > 1]
        found = [float(epsilons(torch.tensor([row]), sampling, self.sigma)[0]) for row in rows]
        return max(found, default=FLOOR)


def error_of_server(server: Endpoint, prompt: Prompt, num_tokens: int, choices: int) -> OwnError:
    """sigma of a server against itself: the same places as it decodes, in answers of their own, and in
    several answers at once.
    """
    if not HAS_TORCH:
        raise MissingExtra("torch", "torch", instead="give the allowed distance with --epsilon")
    (answer,) = server.complete(
        prompt, replace(_NEUTRAL, temperature=0.0), num_tokens, num_logprobs=NUM_LOGPROBS
    )
    ids = prompt.ids or answer.prompt_ids
    errors = [error_of(seen, again) for seen, again in _seen_again(server, prompt, ids, answer)]
    together = server.complete(prompt, _NEUTRAL, 1, num_choices=choices, num_logprobs=NUM_LOGPROBS)
    errors += [
        error_of(answer.logprobs[0], each.logprobs[0])
        for each in together
        if each.logprobs and answer.logprobs
    ]
    return OwnError(largest(errors), answer.logprobs, ids)


def _seen_again(
    server: Endpoint, prompt: Prompt, ids: tuple[int, ...], answer: Completion
) -> Iterator[tuple[dict[Token, float], dict[Token, float]]]:
    """Log-probabilities of an answer's places, and those of answers that begin there."""
    for depth, seen in enumerate(answer.logprobs):
        path = [token for token in answer.tokens[:depth] if isinstance(token, int)]
        if depth == 0:
            yield seen, ask_logprobs(server, prompt)
        elif ids and len(path) == depth and server.dialect.takes_ids:
            yield seen, ask_logprobs(server, replace(prompt, ids=ids), path)
