"""An admitted request: its tokens, its KV-cache slot and its statistics."""

from __future__ import annotations

import secrets
import time
from collections import Counter

from forerun.core.logits_processors import TokenHistory
from forerun.core.verify import VerifyRequest
from forerun.drafters.tree_merge import sources_of
from forerun.engines.local.request import DrafterStats, FinishReason, Request, Result, Stats
from forerun.engines.local.stop_checker import StopChecker
from forerun.errors import ForerunError
from forerun.types import Draft, RequestView, Verdict


class RunningRequest:
    """A request with a slot. `tokens` are prompt and output; the last one is not in the KV cache yet."""

    def __init__(self, request: Request, slot: int, stop_checker: StopChecker) -> None:
        self.request = request
        self.slot = slot
        self.stop_checker = stop_checker
        self.tokens = list(request.prompt)
        self.view = RequestView(
            request.id,
            self.tokens,
            len(request.prompt),
            request.salt,
            sampling=request.sampling,
            prediction=request.prediction,
        )
        self._key = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        self._began = time.perf_counter()
        self._first_token: float | None = None
        self._num_steps = self._num_draft_tokens = self._num_accepted = 0
        self._drafted: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.tokens[len(self.request.prompt) :]

    def verify_request(self, draft: Draft, lenience: float, can_block_verify: bool) -> VerifyRequest:
        """The input of verification for this request's draft."""
        sampling = self.request.sampling
        history = TokenHistory(self.request.prompt, self.output) if sampling.looks_back else TokenHistory()
        return VerifyRequest(
            draft, sampling, self._key, len(self.tokens), history, lenience, can_block_verify
        )

    def commit(self, draft: Draft, verdict: Verdict) -> list[int]:
        """Append the tokens of a verdict, up to a stop; returns the tokens appended."""
        committed = []
        for token in verdict.tokens(draft):
            committed.append(token)
            self.stop_checker.add(token)
            if self.stop_checker.reason is not None:
                break
        self.tokens += committed
        if self._first_token is None:
            self._first_token = time.perf_counter()
        self._num_steps += 1
        for name in draft.source:
            self._drafted.update(sources_of(name))
        for node in verdict.accepted[: len(committed)]:
            self._accepted.update(sources_of(draft.source[node]))
        self._num_draft_tokens += len(draft)
        self._num_accepted += min(len(verdict.accepted), len(committed))
        return committed

    def result(self, reason: FinishReason, error: ForerunError | None = None) -> Result:
        """The result of a request that finishes for this reason."""
        self.stop_checker.close(reason)
        now = time.perf_counter()
        return Result(
            id=self.request.id,
            text=self.stop_checker.text,
            token_ids=tuple(self.output),
            finish_reason=reason,
            stats=Stats(
                num_tokens=len(self.output),
                num_steps=self._num_steps,
                num_draft_tokens=self._num_draft_tokens,
                num_accepted=self._num_accepted,
                ttft_seconds=(self._first_token or now) - self._began,
                seconds=now - self._began,
                by_drafter={
                    name: DrafterStats(num, self._accepted[name])
                    for name, num in sorted(self._drafted.items())
                },
            ),
            error=error,
        )
