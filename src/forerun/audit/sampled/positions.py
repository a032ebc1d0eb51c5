"""What may come next at one place of a text, by the reference: tokens gathered into a few dozen classes.

The likeliest tokens are classes of their own, the others are gathered by how likely they are. Laws that are
within epsilon of each other token by token are so class by class, so nothing is lost but some sharpness.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from forerun.audit.rounding_error import epsilons
from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.logits_warper import probabilities
from forerun.core.tensors import torch
from forerun.servers.endpoint import looked_up
from forerun.types import BoolArray, FloatArray, IntArray, SamplingParams

NUM_TOP: Final = 32
_NUM_BINS: Final = 24
_COPIED: Final = NUM_TOP + _NUM_BINS
"""The class of tokens that a look-up would guess but that are not among the likeliest."""

IMPOSSIBLE: Final = _COPIED + 1
"""The class of tokens that the settings forbid."""

NUM_CLASSES: Final = IMPOSSIBLE + 1

_BYTES: Final = 512 * 2**20
"""What remembered places may hold."""


class ReferenceLogits(Protocol):
    """What places need of a reference."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""

    def after(self, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits [paths, vocabulary] of what comes after the prompt and each path."""


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """One place: p of each token, its class, and what each class weighs. The first classes are `top`.

    `untouched` is what the classes would weigh if all sampling settings were ignored, `stale` if penalties
    did not count what the answer has said so far.
    """

    p: npt.NDArray[np.float32]
    top: IntArray
    class_of: npt.NDArray[np.uint8]
    mass: FloatArray
    size: FloatArray
    copied: BoolArray
    untouched: FloatArray
    stale: FloatArray
    epsilon: float


def _ranks() -> IntArray:
    """Classes gathered once more, by rank: the first ones, then twos, fours, eights; bins by fours."""
    top = [0, 1, 2, 3, *[4] * 4, *[5] * 8, *[6] * 16]
    bins = [7 + number // 4 for number in range(_NUM_BINS)]
    return np.array([*top, *bins, max(bins) + 1, max(bins) + 2])


RANKS: Final = _ranks()


class Positions:
    """All places that samples of one case come to, worked out in batches and remembered while they fit."""

    def __init__(
        self,
        model: ReferenceLogits,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        sigma: float,
        epsilon: float | None = None,
    ) -> None:
        self._model = model
        self._prompt = tuple(prompt)
        self._history = TokenHistory(prompt=self._prompt)
        self._sampling = sampling
        self._sigma = sigma
        self._epsilon = epsilon
        self._known: OrderedDict[tuple[int, ...], Position] = OrderedDict()
        self._most = max(64, _BYTES // (5 * model.vocab_size + 8 * 4 * NUM_CLASSES))

    def at(self, paths: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Position]:
        """The places after these paths."""
        wanted = dict.fromkeys(paths)
        found = {path: self._known[path] for path in wanted if path in self._known}
        missing = [path for path in wanted if path not in found]
        for start in range(0, len(missing), 128):
            some = missing[start : start + 128]
            found.update(zip(some, self._work_out(some), strict=True))
        for path, place in found.items():
            self._known[path] = place
            self._known.move_to_end(path)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found

    def chances(self, length: int, most: int = 4096) -> FloatArray | None:
        """The chance of every beginning of a length, or None if there are more than so many."""
        beginnings: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(length):
            places = self.at(list(beginnings))
            tokens = {path: np.flatnonzero(place.p) for path, place in places.items()}
            if sum(map(len, tokens.values())) > most:
                return None
            beginnings = {
                (*path, int(token)): chance * float(places[path].p[token])
                for path, chance in beginnings.items()
                for token in tokens[path]
            }
        return np.array(list(beginnings.values()))

    def _work_out(self, paths: Sequence[tuple[int, ...]]) -> list[Position]:
        logits = self._model.after(self._prompt, paths).float()
        contexts = [RowContext(self._history, path) for path in paths]
        settings = BatchSampling.of([self._sampling] * len(paths))
        p = probabilities(logits, settings, contexts)
        if self._epsilon is None:
            ruled = logits.clone()
            apply_logits_processors(ruled, settings, contexts)
            allowed = epsilons(ruled, self._sampling, self._sigma)
        else:
            allowed = np.full(len(paths), self._epsilon)
        untouched = torch.softmax(logits, dim=-1)
        forgetful = [RowContext(self._history)] * len(paths)
        stale = probabilities(logits, settings, forgetful) if self._sampling.looks_back else p
        return [
            _gather(p[row], untouched[row], stale[row], [*self._prompt, *path], float(allowed[row]))
            for row, path in enumerate(paths)
        ]


def _gather(
    row: torch.Tensor, raw: torch.Tensor, stale: torch.Tensor, text: Sequence[int], epsilon: float
) -> Position:
    """Put every token into its class."""
    p = row.numpy().astype(np.float32)
    with np.errstate(divide="ignore"):
        bins = np.clip(-np.log2(p), 0, _NUM_BINS - 1).astype(np.uint8)
    class_of = np.where(p > 0, bins + NUM_TOP, IMPOSSIBLE).astype(np.uint8)
    copies = np.array(sorted(token for token in looked_up(text) if isinstance(token, int)), dtype=np.int64)
    copies = copies[copies < len(p)]
    class_of[copies[p[copies] > 0]] = _COPIED
    values, top = row.topk(min(NUM_TOP, len(row)))
    likely = top[values > 0].numpy()
    class_of[likely] = np.arange(len(likely))
    copied = np.zeros(NUM_CLASSES, dtype=bool)
    copied[class_of[copies]] = True
    copied[IMPOSSIBLE] = False
    mass, untouched, old = (
        np.bincount(class_of, weights=each, minlength=NUM_CLASSES) for each in (p, raw.numpy(), stale.numpy())
    )
    return Position(
        p=p,
        top=likely,
        class_of=class_of,
        mass=mass / mass.sum(),
        size=np.bincount(class_of, minlength=NUM_CLASSES).astype(np.float64),
        copied=copied,
        untouched=untouched / untouched.sum(),
        stale=old / old.sum(),
        epsilon=epsilon,
    )
