"""Guessing for an engine: a drafter whose errors cost guesses and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from forerun.config import SpeculationConfig
from forerun.control.price import TYPICAL, worth
from forerun.drafters.documents import load_tokenizer, vocabulary_of
from forerun.drafters.registry import make_drafter
from forerun.types import Draft, RequestView, Verdict

logger = logging.getLogger("forerun.vllm")


class Guesser:
    """Chains of guesses for requests by name, as many as pay, none that the model does not know.

    Its configuration is `additional_config["forerun"]` of vLLM's, as for `SpeculationConfig`.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.config = SpeculationConfig.parse((vllm_config.additional_config or {}).get("forerun", {}))
        self.most_guesses = min(vllm_config.speculative_config.num_speculative_tokens, self.config.max_draft)
        self.vocab_size = vllm_config.model_config.get_vocab_size()
        tokenizer = vllm_config.model_config.tokenizer
        vocabulary = vocabulary_of(load_tokenizer(tokenizer)) if self.config.corpora else None
        self.drafter = make_drafter(self.config, chain=True, vocabulary=vocabulary)
        self.num_errors = 0
        self._drafts: dict[str, Draft] = {}

    def guess(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[int]]:
        """Guesses for every view, at most its budget; none at all where anything goes wrong."""
        try:
            most = [min(budget, self.most_guesses) for budget in budgets]
            drafts = self.drafter.propose(views, most)
            guesses = []
            for view, budget, draft in zip(views, most, drafts, strict=True):
                kept = self._drafts[view.id] = worth(draft, TYPICAL)
                guesses.append(self._known(kept.tokens.tolist())[: max(budget, 0)])
            return guesses
        except Exception:
            self.count_error()
            return [[] for _ in views]

    def hear(self, name: str, said: Sequence[int]) -> None:
        """Tell the drafter what became of its last draft for a request."""
        draft = self._drafts.pop(name, None)
        if draft is not None and len(draft) and len(said):
            num_kept = min(len(said) - 1, len(draft))
            try:
                self.drafter.learn(name, draft, Verdict(tuple(range(num_kept)), said[-1]))
            except Exception:
                self.count_error()

    def forget(self, name: str, view: RequestView | None = None) -> None:
        """A request is over; with a view, the drafter sees the end of its text first."""
        self._drafts.pop(name, None)
        try:
            if view is not None:
                self.drafter.propose([view], [0])
            self.drafter.forget(name)
        except Exception:
            self.count_error()

    def _known(self, tokens: list[int]) -> list[int]:
        """Guesses up to the first that the model does not know."""
        for place, token in enumerate(tokens):
            if not 0 <= token < self.vocab_size:
                return tokens[:place]
        return tokens

    def count_error(self) -> None:
        """Say it once, with the traceback, and count it."""
        self.num_errors += 1
        if self.num_errors == 1:
            logger.exception("guessing failed; decoding goes on without, and later errors are only counted")
