"""Drafts for stock vLLM, through its public `custom_class` hook.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
      "model": "forerun.engines.vllm.LookupProposer", "num_speculative_tokens": 16}'

The hook replaces no part of vLLM, so stock vLLM's guarantees apply. It passes rows of a batch, without
request ids or salts. So requests never share text here, and a row's request is recognized by its tokens.
This module does not import vllm.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forerun.engines.speculative_step import DraftRequest, SpeculativeStep
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.speculation import chain_verdict, make_speculator, make_stats, max_draft_tokens
from forerun.engines.vllm.stats import logger
from forerun.errors import ConfigurationError
from forerun.types import RequestView

Tokens = npt.NDArray[np.int32]


MAX_STEP_SECONDS: Final = 10.0
"""Ignores step timings above this. Steps in which requests came or went are not timed either, because they
include prefills.
"""


class NullProposer:
    """Proposes no draft tokens; used where the scheduler drafts."""

    def __init__(self, vllm_config: Any) -> None:
        del vllm_config

    def load_model(self, *_: Any, **__: Any) -> None:
        """Nothing to load."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """An empty draft for every row."""
        return [[] for _ in sampled_token_ids]


class LookupProposer:
    """The proposer that `custom_class` loads: it returns a list of draft tokens for every row."""

    def __init__(self, vllm_config: Any) -> None:
        if speculation_config(vllm_config).share_outputs:
            raise ConfigurationError(
                "share_outputs needs the salt of each request, which vLLM does not pass to proposers;"
                " leave it out, or use forerun serve"
            )
        self.stats = make_stats(vllm_config)
        self.speculator = make_speculator(vllm_config, self.stats)
        self.max_draft_tokens = max_draft_tokens(vllm_config)
        self.rows = RowTracker(max_requests=2 * vllm_config.scheduler_config.max_num_seqs)
        self._step: SpeculativeStep | None = None
        self._started_at = 0.0

    def load_model(self, *_: Any, **__: Any) -> None:
        """Nothing to load."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: Tokens,
        **_: Any,
    ) -> list[list[int]]:
        """Draft tokens for every row; none for rows still in prefill, and none after an error."""
        try:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            logger.exception("Drafting failed: this step runs without draft tokens")
            return [[] for _ in sampled_token_ids]

    def _propose(
        self, sampled_token_ids: list[list[int]], lengths: npt.NDArray[np.int32], token_ids: Tokens
    ) -> list[list[int]]:
        decoding = [row for row, output in enumerate(sampled_token_ids) if output]
        texts = [token_ids[row, : lengths[row]] for row in decoding]
        occupants, evicted = self.rows.assign(decoding, texts)
        for name in evicted:
            self.speculator.forget(name)
        self._end_step(
            {each.name: sampled_token_ids[row] for row, each in zip(decoding, occupants, strict=True)}
        )
        requests = [
            DraftRequest(RequestView(each.name, text), self.max_draft_tokens)
            for each, text in zip(occupants, texts, strict=True)
        ]
        self._started_at = time.perf_counter()
        step = self._step = self.speculator.draft(requests, len(requests), context=sum(map(len, texts)))
        self.speculator.choose(step)
        by_row = {row: draft.tokens.tolist() for row, draft in zip(decoding, step.drafts, strict=True)}
        return [by_row.get(row, []) for row in range(len(sampled_token_ids))]

    def _end_step(self, outputs: dict[str, list[int]]) -> None:
        """Record the outcome of the last drafts from the tokens that each request generated."""
        step, self._step = self._step, None
        if step is None:
            return
        seconds = time.perf_counter() - self._started_at
        for request, draft in zip(step.requests, step.drafts, strict=True):
            if request.name in outputs:
                verdict = chain_verdict(outputs[request.name], len(draft))
                self.speculator.observe(step, request.name, verdict)
        is_timed = outputs.keys() == {request.name for request in step.requests}
        if is_timed and seconds < MAX_STEP_SECONDS:
            self.speculator.close(step, seconds)


class RowOccupant:
    """The request in a row: a generated name, and a sample of its tokens from the last step."""

    __slots__ = ("name", "positions", "tokens")

    def __init__(self, name: str) -> None:
        self.name = name
        self.positions = np.empty(0, dtype=np.int64)
        self.tokens = np.empty(0, dtype=np.int32)

    def update(self, text: Tokens) -> None:
        """Sample the text: its last 16 tokens, and 32 spread over all of it."""
        spread = np.linspace(0, len(text) - 1, 32).astype(np.int64)
        self.positions = np.concatenate([spread, np.arange(max(0, len(text) - 16), len(text))])
        self.tokens = text[self.positions]

    def matches(self, text: Tokens) -> bool:
        """Whether a text equals or continues the sampled one."""
        return len(text) > self.positions[-1] and bool((text[self.positions] == self.tokens).all())


class RowTracker:
    """Maps rows to requests. vLLM moves rows when requests end; requests are recognized by their tokens.

    Requests with identical text are interchangeable for drafting: the state of one fits the other.
    """

    def __init__(self, max_requests: int) -> None:
        self.max_requests = max_requests
        self._occupants: OrderedDict[str, RowOccupant] = OrderedDict()
        self._by_row: dict[int, RowOccupant] = {}
        self._num_created = 0

    def __len__(self) -> int:
        return len(self._occupants)

    def assign(self, rows: Sequence[int], texts: Sequence[Tokens]) -> tuple[list[RowOccupant], list[str]]:
        """The occupants of a step's rows, recognized or new, and the names evicted for them.

        Beyond `max_requests`, the least recently seen are evicted.
        """
        found: dict[int, RowOccupant] = {}
        free = dict(self._occupants)
        for row, text in zip(rows, texts, strict=True):
            last = self._by_row.get(row)
            if last is not None and last.name in free and last.matches(text):
                found[row] = free.pop(last.name)
        for row, text in zip(rows, texts, strict=True):
            if row not in found:
                moved = next((each for each in reversed(free.values()) if each.matches(text)), None)
                found[row] = self._create() if moved is None else free.pop(moved.name)
        self._by_row |= found
        for row, text in zip(rows, texts, strict=True):
            found[row].update(text)
            self._occupants[found[row].name] = found[row]
            self._occupants.move_to_end(found[row].name)
        num_evicted = len(self._occupants) - max(self.max_requests, len(rows))
        evicted = [self._occupants.popitem(last=False)[0] for _ in range(num_evicted)]
        return [found[row] for row in rows], evicted

    def _create(self) -> RowOccupant:
        self._num_created += 1
        return RowOccupant(f"row-{self._num_created}")
