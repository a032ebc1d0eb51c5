"""Guesses for stock vLLM, through its public hook for drafters.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
      "model": "forerun.engines.vllm.LookupProposer", "num_speculative_tokens": 16}'

Nothing of vLLM is replaced, so the guarantees are stock vLLM's. The hook shows rows of a batch, not requests:
neither ids nor salts. So text never passes between requests here, and who a row belongs to is told from its
tokens. This module does not import vllm; it is handed what it needs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forerun.control.controller import Step
from forerun.engines.vllm.speculator import ChainSpeculator, DraftRequest, ProposedDraft
from forerun.engines.vllm.stats import logger
from forerun.errors import ConfigurationError
from forerun.types import RequestView

Tokens = npt.NDArray[np.int32]


PAUSE: Final = 10.0
"""After so many seconds a step was not what was waited for. Nor is it known how long one took in which others
came or went: they have prompts to read.
"""


class NullProposer:
    """Never guesses: for when the scheduler does."""

    def __init__(self, vllm_config: Any) -> None:
        del vllm_config

    def load_model(self, *_: Any, **__: Any) -> None:
        """There is none to load."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """No guesses for anybody."""
        return [[] for _ in sampled_token_ids]


class LookupProposer:
    """What `custom_class` asks for: made of vLLM's configuration, proposes a list of tokens for every row."""

    def __init__(self, vllm_config: Any) -> None:
        self.guesser = ChainSpeculator(vllm_config)
        if self.guesser.config.share_outputs:
            raise ConfigurationError(
                "share_outputs needs each request's salt, which vLLM does not show its drafters: leave it out"
            )
        self.rows = RowTracker(most=2 * vllm_config.scheduler_config.max_num_seqs)
        self._step: Step | None = None
        self._offers: dict[str, ProposedDraft] = {}
        self._began = 0.0

    def load_model(self, *_: Any, **__: Any) -> None:
        """There is none to load."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: Tokens,
        **_: Any,
    ) -> list[list[int]]:
        """Guesses for every row; none for a prefill that is not over, and none where anything goes wrong."""
        try:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            logger.exception("forerun could not tell whose rows these are; decoding goes on without guesses")
            return [[] for _ in sampled_token_ids]

    def _propose(
        self, sampled_token_ids: list[list[int]], lengths: npt.NDArray[np.int32], token_ids: Tokens
    ) -> list[list[int]]:
        speaking = [row for row, said in enumerate(sampled_token_ids) if said]
        texts = [token_ids[row, : lengths[row]] for row in speaking]
        seats, gone = self.rows.seat(speaking, texts)
        for name in gone:
            self.guesser.forget(name)
        self._close({seat.name: sampled_token_ids[row] for row, seat in zip(speaking, seats, strict=True)})
        asks = [
            DraftRequest(RequestView(seat.name, text), self.guesser.most_guesses)
            for seat, text in zip(seats, texts, strict=True)
        ]
        self._began = time.perf_counter()
        step = self.guesser.begin_step(asks, rows=len(asks), context=sum(map(len, texts)))
        found = self.guesser.draft(step, asks)
        self.guesser.choose(step, found)
        self._step = step
        self._offers = {ask.name: offer for ask, offer in zip(asks, found, strict=True)}
        guesses = {row: offer.tokens for row, offer in zip(speaking, found, strict=True)}
        return [guesses.get(row, []) for row in range(len(sampled_token_ids))]

    def _close(self, said: dict[str, list[int]]) -> None:
        """The step that the last guesses were for is over, and these tokens were said in it."""
        step, self._step = self._step, None
        seconds = time.perf_counter() - self._began
        for name in said.keys() & self._offers.keys():
            self.guesser.observe(name, self._offers[name], said[name])
        if step is not None and said.keys() == self._offers.keys() and seconds < PAUSE:
            self.guesser.close(step, list(self._offers.values()), seconds)


class RowOccupant:
    """Who sits in a row: a name of our own, and what its text looked like when it was last seen."""

    __slots__ = ("name", "places", "seen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.places = np.empty(0, dtype=np.int64)
        self.seen = np.empty(0, dtype=np.int32)

    def remember(self, text: Tokens) -> None:
        """Keep the end of a text and some tokens from all over it."""
        spread = np.linspace(0, len(text) - 1, 32).astype(np.int64)
        self.places = np.concatenate([spread, np.arange(max(0, len(text) - 16), len(text))])
        self.seen = text[self.places]

    def fits(self, text: Tokens) -> bool:
        """Whether a text is the one that was seen, or has grown out of it."""
        return len(text) > self.places[-1] and bool((text[self.places] == self.seen).all())


class RowTracker:
    """Which request sits in which row. Rows move when others leave; requests are known by their tokens.

    Two requests with the same text so far are the same for guessing: what is known of one holds for both.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._seats: OrderedDict[str, RowOccupant] = OrderedDict()
        self._before: dict[int, RowOccupant] = {}
        self._num_seats = 0

    def __len__(self) -> int:
        return len(self._seats)

    def seat(self, rows: Sequence[int], texts: Sequence[Tokens]) -> tuple[list[RowOccupant], list[str]]:
        """The seats of the rows of one step, found again or new, and the names that were given up for them.

        Beyond the bound, those that were not seen for the longest time go.
        """
        found: dict[int, RowOccupant] = {}
        free = dict(self._seats)
        for row, text in zip(rows, texts, strict=True):
            seat = self._before.get(row)
            if seat is not None and seat.name in free and seat.fits(text):
                found[row] = free.pop(seat.name)
        for row, text in zip(rows, texts, strict=True):
            if row not in found:
                moved = next((seat for seat in reversed(free.values()) if seat.fits(text)), None)
                found[row] = self._make() if moved is None else free.pop(moved.name)
        self._before |= found
        for row, text in zip(rows, texts, strict=True):
            found[row].remember(text)
            self._seats[found[row].name] = found[row]
            self._seats.move_to_end(found[row].name)
        gone = [
            self._seats.popitem(last=False)[0] for _ in range(len(self._seats) - max(self.most, len(rows)))
        ]
        return [found[row] for row in rows], gone

    def _make(self) -> RowOccupant:
        self._num_seats += 1
        return RowOccupant(f"row-{self._num_seats}")
