"""Measures epsilon, the total variation distance that a server's rounding alone can cause. It is never zero.

Rounding depends on the shape of a batch. Sigma, the typical error of a logit, is measured on the server's
log-probabilities in one-token completions, which speculation cannot affect. The effect of such errors on a
distribution depends on the sampling settings: a near-tie at the edge of top-k moves the mass of a whole
token. Epsilon at a position is therefore the largest change observed there under simulated errors of size
sigma.
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
from forerun.servers.completions import Completion, Prompt, Token
from forerun.servers.endpoint import Endpoint
from forerun.types import FloatArray, SamplingParams

FLOOR: Final = 0.001
"""The smallest epsilon: servers do not guarantee bitwise reproducible results."""

_CEILING: Final = 0.5
_MAX_ROUNDING: Final = 0.5
"""Larger differences of log-probabilities come from another model or precision, not from rounding."""

NUM_LOGPROBS: Final = 20
_NUM_SIMULATIONS: Final = 8
_NUM_LIKELY: Final = 256
_MIN_LOGPROB: Final = -9.2
"""Tokens less likely than this (1 in 10,000) are ignored: their errors differ from those of likely tokens."""

_NEUTRAL: Final = SamplingParams()


def epsilons(logits: torch.Tensor, sampling: SamplingParams, sigma: float) -> FloatArray:
    """Epsilon for each row of logits, to which logits processors have been applied."""
    warping = without_logits_processors(sampling)
    likely = logits.topk(min(_NUM_LIKELY, logits.shape[1])).values.float()
    near = add_rounding_errors(likely, sigma)
    flat = near.flatten(0, 1)
    p = probabilities(likely, BatchSampling.of([warping] * len(likely)))
    moved = probabilities(flat, BatchSampling.of([warping] * len(flat))).view_as(near)
    largest: FloatArray = ((moved - p).abs().sum(-1).amax(0) / 2).double().numpy()
    return np.asarray(np.clip(largest, FLOOR, _CEILING))


def without_logits_processors(sampling: SamplingParams) -> SamplingParams:
    """The settings without penalties and logit bias: those that remain once the logits are processed."""
    return replace(
        sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias={}
    )


def add_rounding_errors(logits: torch.Tensor, sigma: float) -> torch.Tensor:
    """Logits [simulations, rows, vocabulary] with simulated rounding errors of size sigma; deterministic."""
    generator = torch.Generator().manual_seed(logits.shape[1])
    return logits + sigma * torch.randn(_NUM_SIMULATIONS, *logits.shape, generator=generator)


def rms_difference(one: Mapping[Token, float], other: Mapping[Token, float]) -> float | None:
    """Root mean square difference of two sets of log-probabilities; None if they share no likely token."""
    shared = [token for token in one if token in other and one[token] > _MIN_LOGPROB]
    errors = np.array([one[token] - other[token] for token in shared])
    errors = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else None


def max_error(errors: Iterable[float | None]) -> float:
    """Sigma: the largest of the errors measured at several positions."""
    known = [error for error in errors if error is not None]
    if not known:
        raise UnreadableAnswer(
            "the server returns no comparable log-probabilities, so its rounding cannot be measured: set the"
            " allowed distance with --epsilon"
        )
    if max(known) > _MAX_ROUNDING:
        raise UnreadableAnswer(
            f"the server's log-probabilities are off by {max(known):.2g}, more than the {_MAX_ROUNDING:g}"
            " that rounding can explain: check that it serves this model in this precision, or set the"
            " allowed distance with --epsilon"
        )
    return max(known)


def request_logprobs(
    server: Endpoint, prompt: Prompt, path: Sequence[int] = (), num: int = NUM_LOGPROBS
) -> dict[Token, float]:
    """The server's log-probabilities of the token after a prompt and a path."""
    longer = replace(prompt, ids=(*prompt.ids, *path)) if path else prompt
    (completion,) = server.complete(longer, _NEUTRAL, 1, num_logprobs=num)
    return completion.logprobs[0] if completion.logprobs else {}


def measure_against_model(
    server: Endpoint, prompt: Prompt, paths: Sequence[Sequence[int]], logits: torch.Tensor
) -> float:
    """Sigma of a server against reference logits [paths, vocabulary], the largest over the paths."""
    expected = torch.log_softmax(logits.double(), dim=-1)
    errors = []
    for row, path in enumerate(paths):
        served = request_logprobs(server, prompt, path, min(NUM_LOGPROBS, logits.shape[1]))
        known: dict[Token, float] = {
            token: float(expected[row, token])
            for token in served
            if isinstance(token, int) and 0 <= token < expected.shape[1]
        }
        errors.append(rms_difference(known, served))
    return max_error(errors)


@dataclass(frozen=True, slots=True)
class ServerRounding:
    """Sigma of a server against itself, and the log-probabilities it was measured on."""

    sigma: float
    positions: tuple[dict[Token, float], ...]
    prompt_ids: tuple[int, ...]

    def epsilon(self, sampling: SamplingParams) -> float:
        """The largest epsilon over the positions, from their most likely tokens."""
        rows = [list(position.values()) for position in self.positions if len(position) > 1]
        found = [float(epsilons(torch.tensor([row]), sampling, self.sigma)[0]) for row in rows]
        return max(found, default=FLOOR)


def measure_server(server: Endpoint, prompt: Prompt, num_tokens: int, num_choices: int) -> ServerRounding:
    """Measure sigma of a server against itself.

    The same positions are evaluated while decoding, in one-token requests, and in a request with several
    choices.
    """
    if not HAS_TORCH:
        raise MissingExtra("torch", "torch", instead="give the allowed distance with --epsilon")
    (decoded,) = server.complete(
        prompt, replace(_NEUTRAL, temperature=0.0), num_tokens, num_logprobs=NUM_LOGPROBS
    )
    ids = prompt.ids or decoded.prompt_ids
    errors = [rms_difference(one, other) for one, other in _recomputed(server, prompt, ids, decoded)]
    batch = server.complete(prompt, _NEUTRAL, 1, num_choices=num_choices, num_logprobs=NUM_LOGPROBS)
    errors += [
        rms_difference(decoded.logprobs[0], each.logprobs[0])
        for each in batch
        if each.logprobs and decoded.logprobs
    ]
    return ServerRounding(max_error(errors), decoded.logprobs, ids)


def _recomputed(
    server: Endpoint, prompt: Prompt, ids: tuple[int, ...], decoded: Completion
) -> Iterator[tuple[dict[Token, float], dict[Token, float]]]:
    """Log-probabilities at each position of a completion, and those of a one-token request there."""
    for depth, logprobs in enumerate(decoded.logprobs):
        path = [token for token in decoded.tokens[:depth] if isinstance(token, int)]
        if depth == 0:
            yield logprobs, request_logprobs(server, prompt)
        elif ids and len(path) == depth and server.dialect.accepts_token_ids:
            yield logprobs, request_logprobs(server, replace(prompt, ids=ids), path)
