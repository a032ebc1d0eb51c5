"""Beam search: one step of it, on a tree of tokens, with the rules of transformers' `generate`.

A beam is a node of the tree with the sum of the log-probabilities on its path. A step ranks the continuations
of all beams. Those that end among the first `num_beams` are finished; the best of the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forerun.core.tensors import torch
from forerun.core.token_tree import TokenTree
from forerun.errors import InvalidRequest
from forerun.types import ROOT

EarlyStopping = bool | Literal["never"]
"""Whether to stop once `num_beams` outputs are finished. False: also once the best beam scores less than the
worst of them. "never": also once it cannot score more at any length.
"""


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """Settings of beam search. A finished output's score is its log-probability over its length to the power
    of `length_penalty`.
    """

    num_beams: int = 4
    max_tokens: int = 128
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    end_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise InvalidRequest(f"num_beams is {self.num_beams}; it must be at least 1")
        if self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if self.early_stopping not in (True, False, "never"):
            raise InvalidRequest(
                f"early_stopping is {self.early_stopping!r}; expected True, False or 'never'"
            )

    @property
    def num_ranked(self) -> int:
        """Continuations that a step ranks: at least `num_beams` of them do not end in an end token."""
        return max(2, 1 + len(self.end_tokens)) * self.num_beams


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """The last node of a finished output, and its score."""

    node: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Beams:
    """The beams after `num_tokens` tokens, their log-probabilities, and the finished outputs, best first."""

    nodes: tuple[int, ...]
    log_probs: torch.Tensor
    finished: tuple[FinishedBeam, ...] = ()
    num_tokens: int = 0
    is_done: bool = False


def first_beams() -> Beams:
    """One beam: the prompt."""
    return Beams((ROOT,), torch.zeros(1))


def advance(beams: Beams, next_log_probs: torch.Tensor, tree: TokenTree, settings: BeamSettings) -> Beams:
    """The beams after one more token, given the log-probabilities [beams, vocabulary] of the next one."""
    vocab_size = next_log_probs.shape[1]
    totals = (next_log_probs + beams.log_probs[:, None]).flatten()
    best, indices = totals.topk(min(settings.num_ranked, len(totals)))
    num_tokens = beams.num_tokens + 1
    going_on: list[int] = []
    nodes: list[int] = []
    finished = list(beams.finished)
    for rank, (log_prob, index) in enumerate(zip(best.tolist(), indices.tolist(), strict=True)):
        parent, token = beams.nodes[index // vocab_size], index % vocab_size
        if token in settings.end_tokens or num_tokens == settings.max_tokens:
            if rank < settings.num_beams:
                score = log_prob / num_tokens**settings.length_penalty
                finished.append(FinishedBeam(tree.child(parent, token), score))
        elif len(nodes) < settings.num_beams:
            going_on.append(rank)
            nodes.append(tree.child(parent, token))
    finished = sorted(finished, key=lambda each: -each.score)[: settings.num_beams]
    log_probs = best[going_on]
    is_done = not nodes or _cannot_improve(float(log_probs[0]), finished, num_tokens, settings)
    return Beams(tuple(nodes), log_probs, tuple(finished), num_tokens, is_done)


def _cannot_improve(
    best_log_prob: float, finished: Sequence[FinishedBeam], num_tokens: int, settings: BeamSettings
) -> bool:
    """Whether to stop although beams go on."""
    if len(finished) < settings.num_beams:
        return False
    if settings.early_stopping is True:
        return True
    never = settings.early_stopping == "never" and settings.length_penalty > 0
    length = settings.max_tokens if never else num_tokens
    return bool(best_log_prob / length**settings.length_penalty <= finished[-1].score)
