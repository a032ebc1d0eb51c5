"""Beam search on transformers models: the token tree of a search in one slot of a KV cache."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.core.beam_search import BeamSettings, FinishedBeam
from forerun.core.tensors import torch
from forerun.core.token_tree import TokenTree
from forerun.drafters.draft_model import PREFILL_CHUNK
from forerun.engines.speculative_beams import BeamStats, DraftDepth, search
from forerun.errors import InvalidRequest
from forerun.models.input_rows import COMMITTED, InputRows
from forerun.models.runner import Runner
from forerun.models.tokenization import PromptLike, decode, encode
from forerun.types import ROOT


class TreeRows:
    """A `BeamModel`: the rows of a token tree behind a prompt, in one slot of a runner."""

    def __init__(self, runner: Runner, tree: TokenTree, prompt: Sequence[int], vocab_size: int) -> None:
        self._runner, self._tree, self._vocab_size = runner, tree, vocab_size
        self._slot = runner.allocate()
        self._rows: dict[int, int] = {}
        self._log_probs: dict[int, torch.Tensor] = {}
        for first in range(0, len(prompt), PREFILL_CHUNK):
            chunk = prompt[first : first + PREFILL_CHUNK]
            (self._log_probs[ROOT],) = self._forward(InputRows(self._slot, chunk))
            runner.commit({self._slot: range(len(chunk))})

    def close(self) -> None:
        """Free the slot."""
        self._runner.free(self._slot)

    def has(self, node: int) -> bool:
        """Whether the log-probabilities behind a node are computed."""
        return node in self._log_probs

    def compute(self, nodes: Iterable[int]) -> None:
        """Compute those of these nodes, and of the nodes above them, that are missing, in one pass."""
        missing = [node for node in self._tree.with_ancestors(nodes) if node not in self._rows]
        if missing:
            self._rows |= {node: len(self._rows) + i for i, node in enumerate(missing)}
            parents = [self._rows.get(self._tree.parents[node], COMMITTED) for node in missing]
            tokens = [self._tree.tokens[node] for node in missing]
            rows = InputRows(self._slot, tokens, np.array(parents), num_logits=len(missing))
            self._log_probs |= zip(missing, self._forward(rows), strict=True)

    def log_probs(self, nodes: Sequence[int]) -> torch.Tensor:
        """[nodes, vocabulary]: the log-probabilities of the next token behind each node."""
        return torch.stack([self._log_probs[node] for node in nodes])

    def keep(self, nodes: Iterable[int]) -> None:
        """Forget all nodes but these and those above them."""
        kept = [node for node in self._tree.with_ancestors(nodes) if node in self._rows]
        kept.sort(key=self._rows.__getitem__)
        self._runner.retain(self._slot, [self._rows[node] for node in kept])
        self._rows = {node: row for row, node in enumerate(kept)}
        self._log_probs = {node: self._log_probs[node] for node in kept}

    def _forward(self, rows: InputRows) -> torch.Tensor:
        logits = self._runner.forward([rows])[:, : self._vocab_size]
        return torch.log_softmax(logits.float(), dim=-1)


@dataclass(frozen=True, slots=True)
class BeamOutput:
    """One finished output and its score."""

    text: str
    token_ids: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True)
class BeamResult:
    """The outputs of one prompt, best first."""

    outputs: tuple[BeamOutput, ...]
    stats: BeamStats


@dataclass(frozen=True, slots=True)
class BeamModels:
    """The target, its draft model if there is one, and their tokenizer."""

    target: Runner
    draft: Runner | None
    tokenizer: Any


def run_beam_search(
    models: BeamModels, prompt: PromptLike, settings: BeamSettings, depth: DraftDepth
) -> BeamResult:
    """Search for the outputs of one prompt; both models need a free slot."""
    began = time.perf_counter()
    tokens = encode(models.tokenizer, prompt)
    if not tokens:
        raise InvalidRequest("the prompt is empty: give at least one token")
    tree, stats, vocab_size = TokenTree(), BeamStats(), models.target.vocab_size
    with ExitStack() as stack:
        target, *drafts = (
            stack.enter_context(closing(TreeRows(runner, tree, tokens, vocab_size)))
            for runner in (models.target, models.draft)
            if runner is not None
        )
        beams = search(target, drafts[0] if drafts else None, tree, settings, depth, stats)
    stats.seconds = time.perf_counter() - began
    return BeamResult(tuple(_output(each, tree, models.tokenizer) for each in beams.finished), stats)


def _output(finished: FinishedBeam, tree: TokenTree, tokenizer: Any) -> BeamOutput:
    tokens = tuple(tree.path(finished.node))
    text = "" if tokenizer is None else decode(tokenizer, tokens)
    return BeamOutput(text, tokens, finished.score)
