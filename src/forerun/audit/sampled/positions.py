"""The reference model's next-token distribution at a position, with tokens grouped into a few dozen classes.

The most likely tokens are classes of their own; the others are grouped by probability. Grouping cannot
increase a total variation distance, so the test stays valid and loses only some power.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from forerun.audit.rounding_error import epsilons
from forerun.audit.sampled.lookup_candidates import lookup_candidates
from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.logits_warper import probabilities
from forerun.core.tensors import torch
from forerun.types import BoolArray, FloatArray, IntArray, SamplingParams

NUM_TOP: Final = 32
_NUM_BINS: Final = 24
_LOOKUP: Final = NUM_TOP + _NUM_BINS
"""The class of tokens that a lookup drafter would propose and that are not among the most likely."""

IMPOSSIBLE: Final = _LOOKUP + 1
"""The class of tokens with probability 0 under the sampling settings."""

NUM_CLASSES: Final = IMPOSSIBLE + 1

_CACHE_BYTES: Final = 512 * 2**20
_MAX_PREFIXES: Final = 4096


class ReferenceLogits(Protocol):
    """The part of the reference model that `Positions` uses."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""

    def after(self, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """Next-token logits [paths, vocabulary] after the prompt and each path."""


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """The next-token distribution p, the class of each token, and the mass and size of each class.

    The first classes are the tokens in `top`. `unwarped` is the mass of the classes if all sampling settings
    were ignored; `stale_penalties` if penalties did not count the output so far.
    """

    p: npt.NDArray[np.float32]
    top: IntArray
    class_of: npt.NDArray[np.uint8]
    mass: FloatArray
    size: FloatArray
    is_lookup: BoolArray
    unwarped: FloatArray
    stale_penalties: FloatArray
    epsilon: float


def _ranks() -> IntArray:
    """A coarser grouping of classes: ranks 1 to 4, then groups of 4, 8 and 16; bins in groups of 4."""
    top = [0, 1, 2, 3, *[4] * 4, *[5] * 8, *[6] * 16]
    bins = [7 + number // 4 for number in range(_NUM_BINS)]
    return np.array([*top, *bins, max(bins) + 1, max(bins) + 2])


RANK_GROUPS: Final = _ranks()


class Positions:
    """The positions that samples of one case reach, computed in batches and kept in an LRU cache."""

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
        self._cache: OrderedDict[tuple[int, ...], Position] = OrderedDict()
        self._max_cached = max(64, _CACHE_BYTES // (5 * model.vocab_size + 8 * 4 * NUM_CLASSES))

    def at(self, paths: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Position]:
        """The positions after these paths."""
        wanted = dict.fromkeys(paths)
        found = {path: self._cache[path] for path in wanted if path in self._cache}
        missing = [path for path in wanted if path not in found]
        for start in range(0, len(missing), 128):
            chunk = missing[start : start + 128]
            found.update(zip(chunk, self._compute(chunk), strict=True))
        for path, position in found.items():
            self._cache[path] = position
            self._cache.move_to_end(path)
        while len(self._cache) > self._max_cached:
            self._cache.popitem(last=False)
        return found

    def prefix_probabilities(self, length: int) -> FloatArray | None:
        """The probability of every prefix of a length; None if there are more than `_MAX_PREFIXES`."""
        prefixes: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(length):
            positions = self.at(list(prefixes))
            tokens = {path: np.flatnonzero(position.p) for path, position in positions.items()}
            if sum(map(len, tokens.values())) > _MAX_PREFIXES:
                return None
            prefixes = {
                (*path, int(token)): probability * float(positions[path].p[token])
                for path, probability in prefixes.items()
                for token in tokens[path]
            }
        return np.array(list(prefixes.values()))

    def _compute(self, paths: Sequence[tuple[int, ...]]) -> list[Position]:
        logits = self._model.after(self._prompt, paths).float()
        contexts = [RowContext(self._history, path) for path in paths]
        settings = BatchSampling.of([self._sampling] * len(paths))
        p = probabilities(logits, settings, contexts)
        if self._epsilon is None:
            processed = logits.clone()
            apply_logits_processors(processed, settings, contexts)
            allowed = epsilons(processed, self._sampling, self._sigma)
        else:
            allowed = np.full(len(paths), self._epsilon)
        unwarped = torch.softmax(logits, dim=-1)
        without_output = [RowContext(self._history)] * len(paths)
        stale = probabilities(logits, settings, without_output) if self._sampling.looks_back else p
        return [
            _classify(p[row], unwarped[row], stale[row], [*self._prompt, *path], float(allowed[row]))
            for row, path in enumerate(paths)
        ]


def _classify(
    row: torch.Tensor, unwarped: torch.Tensor, stale: torch.Tensor, text: Sequence[int], epsilon: float
) -> Position:
    """Assign every token to a class."""
    p = row.numpy().astype(np.float32)
    with np.errstate(divide="ignore"):
        bins = np.clip(-np.log2(p), 0, _NUM_BINS - 1).astype(np.uint8)
    class_of = np.where(p > 0, bins + NUM_TOP, IMPOSSIBLE).astype(np.uint8)
    lookup = np.array(
        sorted(token for token in lookup_candidates(text) if isinstance(token, int)), dtype=np.int64
    )
    lookup = lookup[lookup < len(p)]
    class_of[lookup[p[lookup] > 0]] = _LOOKUP
    values, top = row.topk(min(NUM_TOP, len(row)))
    likely = top[values > 0].numpy()
    class_of[likely] = np.arange(len(likely))
    is_lookup = np.zeros(NUM_CLASSES, dtype=bool)
    is_lookup[class_of[lookup]] = True
    is_lookup[IMPOSSIBLE] = False
    mass, unwarped_mass, stale_mass = (
        np.bincount(class_of, weights=each, minlength=NUM_CLASSES)
        for each in (p, unwarped.numpy(), stale.numpy())
    )
    return Position(
        p=p,
        top=likely,
        class_of=class_of,
        mass=mass / mass.sum(),
        size=np.bincount(class_of, minlength=NUM_CLASSES).astype(np.float64),
        is_lookup=is_lookup,
        unwarped=unwarped_mass / unwarped_mass.sum(),
        stale_penalties=stale_mass / stale_mass.sum(),
        epsilon=epsilon,
    )
