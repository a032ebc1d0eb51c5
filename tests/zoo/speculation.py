"""Speculative decoding of a tiny model with switchable defects, each of which a public engine has shipped.

A model is a function from a text to logits. The draft model samples `NUM_DRAFT_TOKENS` tokens from q, and the
target verifies them one by one by rejection sampling (Leviathan et al.).
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
NUM_DRAFT_TOKENS = 3
LOGIT_OFFSET = 100.0
"""Added to logits before rounding: large models have logits of this size, where bfloat16 is coarse."""


class Defect(Enum):
    """A defect of the implementation."""

    NONE = "none"
    SHARED_NOISE = "the recovered token reuses the noise of the draft token"
    OTHER_Q = "draft tokens are not sampled from the q that is used to verify them"
    ROUGH_DRAFT = "draft tokens are sampled in bfloat16 and verified with q in float32"
    RAW_Q = "p is warped, but q is not"
    GREEDY_RATIO = "draft tokens are verified by rejection sampling at temperature 0"
    ARGMAX = "draft tokens are accepted if they are the most likely token, at any temperature"
    PEEKING = "the draft length depends on a draft token that is then removed"
    NO_RESIDUAL = "the recovered token is sampled from p instead of the residual"
    STALE_PENALTIES = "penalties do not count earlier draft tokens"
    NO_SETTINGS = "sampling settings are ignored at draft positions"
    GARBAGE = "draft positions are sampled with uninitialised settings"
    SEED_DRIFT = "rejected draft tokens advance the seeded noise"


@dataclass(frozen=True)
class SpeculativeDecoder:
    """Speculative decoding with rejection sampling, and a defect."""

    target: Logits
    draft: Logits
    defect: Defect = Defect.NONE

    def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, num: int, noise: np.random.Generator
    ) -> tuple[list[int], int]:
        """The output, and the number of accepted draft tokens."""
        output = [self._sample(self._p(prompt, (), sampling), sampling, noise)]
        accepted = 0
        while len(output) < num:
            draft, last = self._step(tuple(prompt), tuple(output), sampling, noise)
            output += [*draft, last]
            accepted += len(draft)
        return output[:num], accepted

    def _step(
        self,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
        sampling: SamplingParams,
        noise: np.random.Generator,
    ) -> tuple[list[int], int]:
        """The accepted draft tokens, and the recovered or bonus token."""
        draft, qs, shared = self._draft((*prompt, *output), sampling, noise)
        if self.defect is Defect.PEEKING:
            odd = [at for at, token in enumerate(draft) if at and token % 2]
            draft = draft[: odd[0] if odd else None]
        accepted: list[int] = []
        for at, (token, q) in enumerate(zip(draft, qs, strict=False)):
            p = self._target_p(prompt, output, tuple(accepted), sampling)
            if not self._accepts(p, q, token, sampling, noise, prompt, (*output, *accepted)):
                return accepted, self._recover(p, q, sampling, noise, shared[at])
            accepted.append(token)
        return accepted, self._sample(
            self._target_p(prompt, output, tuple(accepted), sampling), sampling, noise
        )

    def _draft(
        self, text: tuple[int, ...], sampling: SamplingParams, noise: np.random.Generator
    ) -> tuple[list[int], list[Array], list[float]]:
        """Draft tokens, the q with which each is verified, and the uniform with which each was sampled."""
        draft: list[int] = []
        qs: list[Array] = []
        shared: list[float] = []
        for _ in range(NUM_DRAFT_TOKENS):
            logits = self.draft((*text, *draft))
            raw = softmax(logits)
            q = warp(logits, sampling)
            sampled = q
            if self.defect is Defect.ROUGH_DRAFT:
                rough = torch.from_numpy(logits + LOGIT_OFFSET).to(torch.bfloat16).double().numpy()
                sampled = warp(rough, sampling)
            if self.defect is Defect.OTHER_Q:
                sampled = raw**2 / (raw**2).sum()
            shared.append(noise.random())
            draft.append(sample_at(sampled, shared[-1]))
            qs.append(raw if self.defect is Defect.RAW_Q else q)
        return draft, qs, shared

    def _accepts(
        self,
        p: Array,
        q: Array,
        token: int,
        sampling: SamplingParams,
        noise: np.random.Generator,
        prompt: Sequence[int],
        output: tuple[int, ...],
    ) -> bool:
        if sampling.greedy:
            if self.defect is Defect.GREEDY_RATIO:
                raw = softmax(self.target((*prompt, *output)))
                return bool(noise.random() * softmax(self.draft((*prompt, *output)))[token] < raw[token])
            return token == int(p.argmax())
        if self.defect is Defect.ARGMAX:
            return token == int(p.argmax())
        return bool(noise.random() * q[token] < p[token])

    def _recover(
        self, p: Array, q: Array, sampling: SamplingParams, noise: np.random.Generator, shared: float
    ) -> int:
        if sampling.greedy:
            return int(p.argmax())
        residual = p if self.defect in (Defect.NO_RESIDUAL, Defect.ARGMAX) else np.maximum(p - q, 0)
        if residual.sum() <= 0:
            residual = p
        return sample_at(residual, shared if self.defect is Defect.SHARED_NOISE else noise.random())

    def _target_p(
        self,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
        accepted: tuple[int, ...],
        sampling: SamplingParams,
    ) -> Array:
        """p at a draft position."""
        logits = self.target((*prompt, *output, *accepted))
        if self.defect is Defect.GARBAGE and not sampling.greedy:
            return np.full(len(logits), 1 / len(logits))
        if self.defect is Defect.NO_SETTINGS and not sampling.greedy:
            return softmax(logits)
        counted = () if self.defect is Defect.STALE_PENALTIES else accepted
        return warp(logits, sampling, prompt, (*output, *counted))

    def _p(self, prompt: Sequence[int], output: tuple[int, ...], sampling: SamplingParams) -> Array:
        return warp(self.target((*prompt, *output)), sampling, prompt, output)

    def _sample(self, p: Array, sampling: SamplingParams, noise: np.random.Generator) -> int:
        if sampling.greedy:
            return int(p.argmax())
        return sample_at(p, noise.random())


@dataclass(frozen=True)
class SeededDecoder:
    """Seeded decoding: noise belongs to a position, and a draft token is accepted if the target agrees."""

    target: Logits
    draft: Logits
    defect: Defect = Defect.NONE

    def generate(self, prompt: Sequence[int], sampling: SamplingParams, num: int) -> tuple[list[int], int]:
        """The output, and the number of accepted draft tokens."""
        output: list[int] = []
        accepted, drift = 0, 0
        draft: list[int] = []
        while len(output) < num:
            seed = [sampling.seed or 0, len(output) + drift]
            p = warp(self.target((*prompt, *output)), sampling, prompt, tuple(output))
            token = int(np.argmax(p / np.random.default_rng(seed).exponential(size=len(p))))
            if draft:
                if draft[0] == token:
                    accepted += 1
                    draft.pop(0)
                else:
                    drift += self.defect is Defect.SEED_DRIFT
                    draft = []
            output.append(token)
            if not draft:
                text = (*prompt, *output)
                for _ in range(NUM_DRAFT_TOKENS):
                    draft.append(int(self.draft((*text, *draft)).argmax()))
        return output, accepted


def sample_at(weights: Array, u: float) -> int:
    """Inverse-CDF sample of unnormalised weights."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, u * sums[-1], side="right"))


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def warp(
    logits: Array, sampling: SamplingParams, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> Array:
    """The distribution under the sampling settings, by forerun's own warper; cached."""
    before = (tuple(prompt), tuple(output)) if sampling.looks_back else ((), ())
    key = (logits.tobytes(), before, *(getattr(sampling, name) for name in _FIELDS))
    if key not in _CACHE:
        row = torch.from_numpy(np.asarray(logits, dtype=np.float32))[None]
        p = probabilities(row, BatchSampling.of([sampling]), [RowContext(TokenHistory(*before))])[0]
        _CACHE[key] = p.double().numpy()
    return _CACHE[key]


_CACHE: dict[tuple[object, ...], Array] = {}
_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
