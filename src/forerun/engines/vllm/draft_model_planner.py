"""Plans vLLM's draft model, which runs in the worker at the end of a step, for the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.engines.lookahead_planner import LookaheadStep
from forerun.engines.speculative_step import DraftRequest, SpeculativeStep
from forerun.engines.speculator import MODEL, Speculator
from forerun.engines.vllm.draft_kv_cache import DraftKVCache
from forerun.engines.vllm.stats import SpecDecodeStats
from forerun.engines.vllm.step_plan import PLACEHOLDER
from forerun.types import Draft


class DraftModelPlanner:
    """Sets the draft length of the draft model one step ahead, and offers its drafts to the speculator.

    In a step in which drafting pays for no request, the draft model does not run, and its KV cache lacks that
    step's tokens: it drafts no more for these requests. It drafts for requests that start later.
    """

    def __init__(self, speculator: Speculator, stats: SpecDecodeStats, block_size: int) -> None:
        self.speculator = speculator
        self.stats = stats
        self._lengths: dict[str, int] = {}
        self._kv_cache = DraftKVCache(block_size)

    def plan(
        self,
        step: SpeculativeStep,
        requests: Sequence[Any],
        draft_requests: Sequence[DraftRequest],
        num_scheduled: Mapping[str, int],
    ) -> int:
        """The draft length at the end of this step, over all requests that are in it and then decode."""
        num_computed = {
            request.request_id: request.num_computed_tokens - num_scheduled[request.request_id]
            for request in requests
        }
        for request in requests:
            self._kv_cache.start_step(request, num_computed[request.request_id])
        lengths = self.speculator.plan_lengths(
            draft_requests,
            MODEL,
            [each.max_tokens if self._may_draft(each) else 0 for each in draft_requests],
            context=sum(request.num_computed_tokens for request in requests),
            num_prefill_tokens=step.control.num_prefill_rows,
        )
        self._lengths = {each.name: length for each, length in zip(draft_requests, lengths, strict=True)}
        max_length = max(lengths, default=0)
        if max_length == 0:
            for request_id, num in num_computed.items():
                self._kv_cache.skip_step(request_id, num)
        return max_length

    def offer(self, step: SpeculativeStep, requests: Sequence[Any]) -> frozenset[str]:
        """Use the tokens that the draft model sampled where they are expected to gain more.

        Returns the ids of the requests that use them.
        """
        drafts = []
        for request, draft_request in zip(requests, step.requests, strict=True):
            length = min(draft_request.max_tokens, self._lengths.get(draft_request.name, 0))
            uses = self.speculator.uses(draft_request, MODEL)
            drafts.append(_sampled_chain(request.spec_token_ids[:length] if uses else []))
        return self.speculator.merger.offer_sampled(step, MODEL, drafts)

    def offer_ahead(self, step: LookaheadStep) -> None:
        """Plan the tokens that the draft model samples in the step in flight, where they are expected to
        gain more than a lookup after it.
        """
        speculation = step.speculation
        drafts = []
        for index, request in enumerate(speculation.requests):
            is_baseline = speculation.control.is_baseline and speculation.control.adaptive[index]
            uses = self.speculator.uses(request, MODEL) and not is_baseline
            length = min(request.max_tokens, self._lengths.get(request.name, 0)) if uses else 0
            drafts.append(_sampled_chain([PLACEHOLDER] * length))
        candidates = self.speculator.merger.candidates(speculation, drafts)
        survivals = self.speculator.controller.estimate_survival(speculation.control, candidates)
        ends = np.cumsum([len(draft) for draft in drafts]).tolist()
        for index, (draft, end) in enumerate(zip(drafts, ends, strict=True)):
            expected = float(survivals[end - len(draft) : end].sum())
            names_model_only = speculation.requests[index].drafters == (MODEL,)
            if len(draft) and (expected > step.expected_accepted[index] or names_model_only):
                step.use_draft(index, draft)

    def record_time(self, step: SpeculativeStep, num_passes: int, seconds: float) -> None:
        """Record the time that the draft model took at the end of a step."""
        self.stats.add_seconds(MODEL, seconds)
        self.speculator.record_draft_time(step, MODEL, num_passes, seconds, step.control.num_prefill_rows)

    def forget(self, request: Any) -> None:
        """Drop the state of a finished request."""
        self._kv_cache.forget(request)

    def _may_draft(self, request: DraftRequest) -> bool:
        """Whether the draft model may draft for a request: only if its KV cache has all of its tokens."""
        return self.speculator.uses(request, MODEL) and self._kv_cache.has_all(request.name)


def _sampled_chain(tokens: Sequence[int]) -> Draft:
    """A chain of sampled tokens; their q stays in the worker, which verifies them."""
    chain = Draft.chain(tokens, source=MODEL)
    return Draft(chain.tokens, chain.parents, np.ones(len(chain), dtype=bool), source=chain.source)
