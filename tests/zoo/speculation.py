"""Speculative decoding of a tiny model, written to be broken: each defect is one public engines shipped.

A model is a function from a text to logits. The draft guesses `NUM_GUESSES` tokens, sampled from its own q
(or looks them up), and the target judges them one by one, as Leviathan et al. do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch

from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory
from forerun.core.logits_warper import probabilities
from forerun.types import SamplingParams

Array = np.ndarray
Logits = Callable[[tuple[int, ...]], Array]
NUM_GUESSES = 3
LEVEL = 100.0
"""Where large models' logits can be: low precision is coarse there."""


class Defect(Enum):
    """What can be wrong."""

    NONE = "nothing"
    SHARED_NOISE = "the resample reuses the noise of the draft"
    OTHER_Q = "the q that is reported is not the one that was sampled from"
    ROUGH_DRAFT = "the draft is sampled in low precision, and judged by its q in float32"
    RAW_Q = "p is warped, q is not"
    GREEDY_RATIO = "at temperature 0 guesses are judged by a ratio of probabilities"
    ARGMAX = "guesses that are the likeliest token stand, at any temperature"
    PEEKING = "how many guesses are judged depends on a token that is then dropped"
    NO_RESIDUAL = "after a rejection p is sampled, not the residual"
    STALE_PENALTIES = "penalties do not count the guesses before a position"
    NO_SETTINGS = "sampling settings are ignored wherever there was a guess"
    GARBAGE = "guessed positions are sampled with settings that were never filled in"
    SEED_DRIFT = "rejected positions use up noise of the seed"


@dataclass(frozen=True)
class Speaker:
    """A target, a draft, and what is wrong with them."""

    target: Logits
    draft: Logits
    defect: Defect = Defect.NONE

    def say(
        self, prompt: Sequence[int], sampling: SamplingParams, num: int, noise: np.random.Generator
    ) -> tuple[list[int], int]:
        """An answer, and how many of its tokens were guesses that stood."""
        said = [self._sample(self._p(prompt, (), sampling), sampling, noise)]
        accepted = 0
        while len(said) < num:
            kept, more = self._round(tuple(prompt), tuple(said), sampling, noise)
            said += [*kept, more]
            accepted += len(kept)
        return said[:num], accepted

    def _round(
        self,
        prompt: tuple[int, ...],
        said: tuple[int, ...],
        sampling: SamplingParams,
        noise: np.random.Generator,
    ) -> tuple[list[int], int]:
        guesses, qs, shared = self._guess((*prompt, *said), sampling, noise)
        if self.defect is Defect.PEEKING:
            odd = [at for at, guess in enumerate(guesses) if at and guess % 2]
            guesses = guesses[: odd[0] if odd else None]
        kept: list[int] = []
        for at, (guess, q) in enumerate(zip(guesses, qs, strict=False)):
            p = self._judged(prompt, said, tuple(kept), sampling)
            if not self._stands(p, q, guess, sampling, noise, prompt, (*said, *kept)):
                return kept, self._resample(p, q, sampling, noise, shared[at])
            kept.append(guess)
        return kept, self._sample(self._judged(prompt, said, tuple(kept), sampling), sampling, noise)

    def _guess(
        self, text: tuple[int, ...], sampling: SamplingParams, noise: np.random.Generator
    ) -> tuple[list[int], list[Array], list[float]]:
        """Guesses, the q of each as it is reported, and the number each was drawn with."""
        guesses: list[int] = []
        qs: list[Array] = []
        shared: list[float] = []
        for _ in range(NUM_GUESSES):
            logits = self.draft((*text, *guesses))
            raw = softmax(logits)
            q = warp(logits, sampling)
            drawn = q
            if self.defect is Defect.ROUGH_DRAFT:
                rough = torch.from_numpy(logits + LEVEL).to(torch.bfloat16).double().numpy()
                drawn = warp(rough, sampling)
            if self.defect is Defect.OTHER_Q:
                drawn = raw**2 / (raw**2).sum()
            shared.append(noise.random())
            guesses.append(pick(drawn, shared[-1]))
            qs.append(raw if self.defect is Defect.RAW_Q else q)
        return guesses, qs, shared

    def _stands(
        self,
        p: Array,
        q: Array,
        guess: int,
        sampling: SamplingParams,
        noise: np.random.Generator,
        prompt: Sequence[int],
        said: tuple[int, ...],
    ) -> bool:
        if sampling.greedy:
            if self.defect is Defect.GREEDY_RATIO:
                raw = softmax(self.target((*prompt, *said)))
                return bool(noise.random() * softmax(self.draft((*prompt, *said)))[guess] < raw[guess])
            return guess == int(p.argmax())
        if self.defect is Defect.ARGMAX:
            return guess == int(p.argmax())
        return bool(noise.random() * q[guess] < p[guess])

    def _resample(
        self, p: Array, q: Array, sampling: SamplingParams, noise: np.random.Generator, shared: float
    ) -> int:
        if sampling.greedy:
            return int(p.argmax())
        left = p if self.defect in (Defect.NO_RESIDUAL, Defect.ARGMAX) else np.maximum(p - q, 0)
        if left.sum() <= 0:
            left = p
        return pick(left, shared if self.defect is Defect.SHARED_NOISE else noise.random())

    def _judged(
        self, prompt: tuple[int, ...], said: tuple[int, ...], kept: tuple[int, ...], sampling: SamplingParams
    ) -> Array:
        """p at a guessed position."""
        logits = self.target((*prompt, *said, *kept))
        if self.defect is Defect.GARBAGE and not sampling.greedy:
            return np.full(len(logits), 1 / len(logits))
        if self.defect is Defect.NO_SETTINGS and not sampling.greedy:
            return softmax(logits)
        counted = () if self.defect is Defect.STALE_PENALTIES else kept
        return warp(logits, sampling, prompt, (*said, *counted))

    def _p(self, prompt: Sequence[int], said: tuple[int, ...], sampling: SamplingParams) -> Array:
        return warp(self.target((*prompt, *said)), sampling, prompt, said)

    def _sample(self, p: Array, sampling: SamplingParams, noise: np.random.Generator) -> int:
        if sampling.greedy:
            return int(p.argmax())
        return pick(p, noise.random())


@dataclass(frozen=True)
class SeededSpeaker:
    """What a seed promises: noise that belongs to a position, and guesses that are followed."""

    target: Logits
    draft: Logits
    defect: Defect = Defect.NONE

    def say(self, prompt: Sequence[int], sampling: SamplingParams, num: int) -> tuple[list[int], int]:
        """An answer, and how many of its tokens were guesses that stood."""
        said: list[int] = []
        accepted, drift = 0, 0
        guesses: list[int] = []
        while len(said) < num:
            seed = [sampling.seed or 0, len(said) + drift]
            p = warp(self.target((*prompt, *said)), sampling, prompt, tuple(said))
            token = int(np.argmax(p / np.random.default_rng(seed).exponential(size=len(p))))
            if guesses:
                if guesses[0] == token:
                    accepted += 1
                    guesses.pop(0)
                else:
                    drift += self.defect is Defect.SEED_DRIFT
                    guesses = []
            said.append(token)
            if not guesses:
                text = (*prompt, *said)
                for _ in range(NUM_GUESSES):
                    guesses.append(int(self.draft((*text, *guesses)).argmax()))
        return said, accepted


def pick(weights: Array, u: float) -> int:
    """The outcome at u of the running sum."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, u * sums[-1], side="right"))


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def warp(
    logits: Array, sampling: SamplingParams, prompt: Sequence[int] = (), said: Sequence[int] = ()
) -> Array:
    """The law after the sampling settings, as the reference has it; remembered, since texts are few."""
    before = (tuple(prompt), tuple(said)) if sampling.looks_back else ((), ())
    key = (logits.tobytes(), before, *(getattr(sampling, name) for name in _FIELDS))
    if key not in _LAWS:
        row = torch.from_numpy(np.asarray(logits, dtype=np.float32))[None]
        law = probabilities(row, BatchSampling.of([sampling]), [RowContext(TokenHistory(*before))])[0]
        _LAWS[key] = law.double().numpy()
    return _LAWS[key]


_LAWS: dict[tuple[object, ...], Array] = {}
_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
