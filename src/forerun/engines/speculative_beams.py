"""Speculative beam search (Leviathan et al. 2023, appendix A.4), for any engine.

A draft model runs some steps of beam search, at least as wide as the target's. One forward pass of the target
computes the log-probabilities at all of its beams; the target's own beam search goes on for as many steps as
its beams are among them. The result is that of beam search without a draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from forerun.core.beam_search import Beams, BeamSettings, advance, first_beams
from forerun.core.tensors import torch
from forerun.core.theory import expected_tokens
from forerun.core.token_tree import TokenTree

MAX_DEPTH: Final = 8
"""Maximum number of steps of beam search in a draft."""

WIDTH_FACTOR: Final = 2
"""Beams of the draft for each beam of the target."""

EXPLORATION_INTERVAL: Final = 16
"""Forward passes of the target between two drafts where none seems to pay."""


class BeamModel(Protocol):
    """A model that computes log-probabilities along a token tree."""

    def has(self, node: int) -> bool:
        """Whether the log-probabilities behind a node are computed."""

    def compute(self, nodes: Iterable[int]) -> None:
        """Compute those of these nodes, and of the nodes above them, that are missing, in one pass."""

    def log_probs(self, nodes: Sequence[int]) -> torch.Tensor:
        """[nodes, vocabulary]: the log-probabilities of the next token behind each node."""

    def keep(self, nodes: Iterable[int]) -> None:
        """Forget all nodes but these and those above them."""


@dataclass(slots=True)
class BeamStats:
    """Counts of one search. A step adds one token to the beams; `num_accepted` of the `num_drafted` steps of
    the draft model were taken by the target. `num_passes` are the target's forward passes after the prompt.
    """

    num_steps: int = 0
    num_passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    seconds: float = 0.0


class DraftDepth:
    """Chooses for how many steps to draft, by the acceptance so far and the seconds of forward passes.

    `cost` gives the seconds of a target forward pass by its rows.
    """

    def __init__(self, cost: Callable[[int], float]) -> None:
        self._cost = cost
        self._offered, self._accepted = 2.0, 1.0
        self._draft_seconds, self._num_draft_passes = 0.0, 0
        self._num_passes = 0

    def choose(self, num_beams: int, draft_width: int) -> int:
        """The number of steps with the most expected steps per second."""
        self._num_passes += 1
        rate = self._accepted / self._offered
        draft_seconds = self._draft_seconds / max(self._num_draft_passes, 1)

        def speed(depth: int) -> float:
            rows = num_beams + draft_width * depth
            return expected_tokens(rate, depth) / (self._cost(rows) + depth * draft_seconds)

        best = max(range(MAX_DEPTH + 1), key=speed)
        return best or int(self._num_passes % EXPLORATION_INTERVAL == 0)

    def record(self, num_drafted: int, num_accepted: int, draft_seconds: float) -> None:
        """Record a draft of some steps, of which the target took the first ones."""
        self._offered += min(num_accepted + 1, num_drafted)
        self._accepted += num_accepted
        self._draft_seconds += draft_seconds
        self._num_draft_passes += num_drafted


def search(
    target: BeamModel,
    draft: BeamModel | None,
    tree: TokenTree,
    settings: BeamSettings,
    depth: DraftDepth,
    stats: BeamStats,
) -> Beams:
    """Search until no output can improve. Both models have the log-probabilities behind the prompt."""
    beams = _advance_while_known(first_beams(), target, tree, settings)
    draft_width = WIDTH_FACTOR * settings.num_beams
    while not beams.is_done:
        num_drafted, drafted = 0, set(beams.nodes)
        began = time.perf_counter()
        if draft is not None:
            num_left = settings.max_tokens - beams.num_tokens - 1  # the last token needs no log-probabilities
            num_drafted = min(depth.choose(len(beams.nodes), draft_width), num_left)
            wide = replace(settings, num_beams=draft_width)
            drafted |= _draft(beams, draft, tree, wide, num_drafted)
        draft_seconds = time.perf_counter() - began
        target.compute(drafted)
        num_before = beams.num_tokens
        beams = _advance_while_known(beams, target, tree, settings)
        if num_drafted:
            num_accepted = min(beams.num_tokens - num_before - 1, num_drafted)
            depth.record(num_drafted, num_accepted, draft_seconds)
            stats.num_drafted += num_drafted
            stats.num_accepted += num_accepted
        for model in (target, draft):
            if model is not None:
                model.keep(beams.nodes)
        stats.num_passes += 1
    stats.num_steps = beams.num_tokens
    return beams


def _advance_while_known(beams: Beams, target: BeamModel, tree: TokenTree, settings: BeamSettings) -> Beams:
    """Take the steps for which the target's log-probabilities are computed."""
    while not beams.is_done and all(map(target.has, beams.nodes)):
        beams = advance(beams, target.log_probs(beams.nodes), tree, settings)
    return beams


def _draft(
    beams: Beams, draft: BeamModel, tree: TokenTree, settings: BeamSettings, num_steps: int
) -> set[int]:
    """The nodes of the draft's beams in the next steps."""
    nodes: set[int] = set()
    beams = replace(beams, finished=())
    for _ in range(num_steps):
        draft.compute(beams.nodes)
        beams = advance(beams, draft.log_probs(beams.nodes), tree, settings)
        nodes.update(beams.nodes)
        if beams.is_done:
            break
    return nodes
