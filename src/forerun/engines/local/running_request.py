"""A request on its way: its text so far, where it lives, and what it took."""

from __future__ import annotations

import secrets
import time
from collections import Counter

from forerun.core.logits_processors import TokenHistory
from forerun.core.verify import VerifyRequest
from forerun.drafters.tree_merge import BETWEEN
from forerun.engines.local.request import DrafterStats, FinishReason, Request, Result, Stats
from forerun.engines.local.stop_checker import StopChecker
from forerun.errors import ForerunError
from forerun.types import Draft, RequestView, Verdict


class RunningRequest:
    """One request that was admitted. `tokens` is prompt and answer; the last of them is not read yet."""

    def __init__(self, request: Request, slot: int, ending: StopChecker) -> None:
        self.request = request
        self.slot = slot
        self.ending = ending
        self.tokens = list(request.prompt)
        self.view = RequestView(
            request.id, self.tokens, len(request.prompt), request.salt, sampling=request.sampling
        )
        self._key = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        self._began = time.perf_counter()
        self._first: float | None = None
        self._passes = self._num_guesses = self._num_accepted = 0
        self._guesses: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    @property
    def answer(self) -> list[int]:
        """What was said so far."""
        return self.tokens[len(self.request.prompt) :]

    def verify_request(self, draft: Draft, lenience: float, jointly: bool) -> VerifyRequest:
        """This request's part in a step."""
        sampling = self.request.sampling
        history = TokenHistory(self.request.prompt, self.answer) if sampling.looks_back else TokenHistory()
        return VerifyRequest(draft, sampling, self._key, len(self.tokens), history, lenience, jointly)

    def commit(self, draft: Draft, verdict: Verdict) -> list[int]:
        """Say what stands, up to a stop; returns what was said."""
        said = []
        for token in verdict.tokens(draft):
            said.append(token)
            self.ending.add(token)
            if self.ending.reason is not None:
                break
        self.tokens += said
        if self._first is None:
            self._first = time.perf_counter()
        self._passes += 1
        for name in draft.source:
            self._guesses.update(name.split(BETWEEN))
        for node in verdict.accepted[: len(said)]:
            self._accepted.update(draft.source[node].split(BETWEEN))
        self._num_guesses += len(draft)
        self._num_accepted += min(len(verdict.accepted), len(said))
        return said

    def result(self, reason: FinishReason, error: ForerunError | None = None) -> Result:
        """The answer, over for this reason."""
        self.ending.close(reason)
        now = time.perf_counter()
        return Result(
            id=self.request.id,
            text=self.ending.text,
            token_ids=tuple(self.answer),
            finish_reason=reason,
            stats=Stats(
                num_tokens=len(self.answer),
                num_passes=self._passes,
                num_guesses=self._num_guesses,
                num_accepted=self._num_accepted,
                seconds_to_first=(self._first or now) - self._began,
                seconds=now - self._began,
                by_drafter={
                    name: DrafterStats(num, self._accepted[name])
                    for name, num in sorted(self._guesses.items())
                },
            ),
            error=error,
        )
