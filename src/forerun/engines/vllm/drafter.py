"""Guesses for stock vLLM, through its public hook for drafters.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
      "model": "forerun.engines.vllm.Drafter", "num_speculative_tokens": 16}'

Nothing of vLLM is replaced, so the guarantees are stock vLLM's. The hook shows rows of a batch, not requests:
neither ids nor salts. So text never passes between requests here, and who a row belongs to is told from its
tokens. This module does not import vllm; it is handed what it needs.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.config import SpeculationConfig
from forerun.control.price import TYPICAL, worth
from forerun.drafters.documents import load_tokenizer, vocabulary_of
from forerun.drafters.registry import make_drafter
from forerun.errors import ConfigurationError
from forerun.types import Draft, RequestView, Verdict
from forerun.types import Drafter as AnyDrafter

logger = logging.getLogger("forerun.vllm")

Tokens = npt.NDArray[np.int32]


class Drafter:
    """What `custom_class` asks for: made of vLLM's configuration, proposes a list of tokens for every row.

    Its own configuration is `additional_config["forerun"]`, as for `SpeculationConfig`.
    """

    def __init__(self, vllm_config: Any) -> None:
        config = SpeculationConfig.parse((vllm_config.additional_config or {}).get("forerun", {}))
        if config.share_outputs:
            raise ConfigurationError(
                "share_outputs needs each request's salt, which vLLM does not show its drafters: leave it out"
            )
        self.most_guesses = min(vllm_config.speculative_config.num_speculative_tokens, config.max_draft)
        self.vocab_size = vllm_config.model_config.get_vocab_size()
        tokenizer = vllm_config.model_config.tokenizer
        vocabulary = vocabulary_of(load_tokenizer(tokenizer)) if config.corpora else None
        self.drafter = make_drafter(config, chain=True, vocabulary=vocabulary)
        self.rows = Rows(most=2 * vllm_config.scheduler_config.max_num_seqs)
        self.num_errors = 0

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
            self.num_errors += 1
            if self.num_errors == 1:
                logger.exception(
                    "guessing failed; decoding goes on without, and later errors are only counted"
                )
            return [[] for _ in sampled_token_ids]

    def _propose(
        self, said: list[list[int]], lengths: npt.NDArray[np.int32], token_ids: Tokens
    ) -> list[list[int]]:
        speaking = [row for row in range(len(said)) if said[row]]
        texts = [token_ids[row, : lengths[row]] for row in speaking]
        seats, gone = self.rows.seat(speaking, texts)
        for name in gone:
            self.drafter.forget(name)
        for row, seat in zip(speaking, seats, strict=True):
            seat.hear(said[row], self.drafter)
        views = [RequestView(seat.name, text) for seat, text in zip(seats, texts, strict=True)]
        drafts = self.drafter.propose(views, [self.most_guesses] * len(views))
        guesses: list[list[int]] = [[] for _ in said]
        for row, seat, draft in zip(speaking, seats, drafts, strict=True):
            seat.draft = worth(draft, TYPICAL)
            guesses[row] = self._known(seat.draft.tokens.tolist())
        return guesses

    def _known(self, tokens: list[int]) -> list[int]:
        """Guesses up to the first that the model does not know."""
        for place, token in enumerate(tokens):
            if not 0 <= token < self.vocab_size:
                return tokens[:place]
        return tokens


class Seat:
    """Who sits in a row: a name of our own, and what its text looked like when it was last seen."""

    __slots__ = ("draft", "name", "places", "seen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.draft: Draft | None = None
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

    def hear(self, said: Sequence[int], drafter: AnyDrafter) -> None:
        """Tell the drafter what became of the last draft, if there was one."""
        if self.draft is not None and len(self.draft):
            num_kept = min(len(said) - 1, len(self.draft))
            drafter.learn(self.name, self.draft, Verdict(tuple(range(num_kept)), said[-1]))
        self.draft = None


class Rows:
    """Which request sits in which row. Rows move when others leave; requests are known by their tokens.

    Two requests with the same text so far are the same for guessing: what is known of one holds for both.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._seats: OrderedDict[str, Seat] = OrderedDict()
        self._before: dict[int, Seat] = {}
        self._num_seats = 0

    def __len__(self) -> int:
        return len(self._seats)

    def seat(self, rows: Sequence[int], texts: Sequence[Tokens]) -> tuple[list[Seat], list[str]]:
        """The seats of the rows of one step, found again or new, and the names that were given up for them.

        Beyond the bound, those that were not seen for the longest time go.
        """
        found: dict[int, Seat] = {}
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

    def _make(self) -> Seat:
        self._num_seats += 1
        return Seat(f"row-{self._num_seats}")
