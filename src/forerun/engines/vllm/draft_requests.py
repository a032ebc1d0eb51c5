"""vLLM's requests as the speculator sees them: tokens, draft budget, drafters and sampling class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from forerun.engines.speculative_step import DraftRequest, drafters_of
from forerun.engines.vllm.request_options import DEFAULT_OPTIONS, NO_DRAFTER, RequestOptions
from forerun.types import RequestView, SamplingParams, Tokens

GREEDY: Final = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class _Prepared:
    """What does not change from step to step of a request, and its last draft request, which is used again
    while its budget stays the same.
    """

    max_draft: int
    has_thinking_budget: bool
    last: DraftRequest


class DraftRequestBuilder:
    """Builds the draft requests of a batch; remembers the settings of each request until it is forgotten.

    `drafters` are the names that options may use, `default_drafters` those of a request that names none, and
    `max_draft_tokens` is the limit of every request.
    """

    def __init__(
        self,
        scheduler: Any,
        drafters: Sequence[str],
        max_draft_tokens: int,
        default_drafters: Sequence[str] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.drafters = drafters
        self.default_drafters = tuple(drafters if default_drafters is None else default_drafters)
        self.max_draft_tokens = max_draft_tokens
        self._prepared: dict[str, _Prepared] = {}

    def build(self, requests: Sequence[Any], num_pending: int = 0) -> list[DraftRequest]:
        """The draft requests of a batch, after `num_pending` more tokens of every request."""
        every = [self._prepared.get(each.request_id) or self._prepare(each) for each in requests]
        share = self._max_draft_per_request(every)
        result = []
        for request, prepared in zip(requests, every, strict=True):
            budget = min(share, self._max_draft(request, prepared.max_draft, num_pending))
            last = prepared.last
            if last.max_tokens != budget or last.view.num_prompt != request.num_prompt_tokens:
                view = view_of(request, last.view.prediction, last.view.sampling)
                last = prepared.last = replace(last, view=view, max_tokens=budget)
            result.append(last)
        return result

    def drafters_of(self, request_id: str) -> tuple[str, ...] | None:
        """The drafters that a request names; None for the server's default ones."""
        prepared = self._prepared.get(request_id)
        return None if prepared is None else prepared.last.drafters

    def prediction_of(self, request_id: str) -> Tokens | None:
        """The tokens of a request's predicted output."""
        prepared = self._prepared.get(request_id)
        return None if prepared is None else prepared.last.view.prediction

    def forget(self, request_id: str) -> None:
        """Drop the settings of a finished request."""
        self._prepared.pop(request_id, None)

    def _prepare(self, request: Any) -> _Prepared:
        """Read the speculation settings of a request; the front end has rejected invalid ones."""
        params, options = request.sampling_params, DEFAULT_OPTIONS
        if params is not None:
            options = RequestOptions.parse_or_default(params.extra_args, self.drafters)
        limit = self.max_draft_tokens
        max_draft = limit if options.max_draft is None else min(options.max_draft, limit)
        sampling = GREEDY if params is None else SamplingParams(params.temperature, seed=params.seed)
        prepared = self._prepared[request.request_id] = _Prepared(
            max_draft,
            params is not None and params.thinking_token_budget is not None,
            DraftRequest(
                view_of(request, _prediction(options), sampling),
                max_draft,
                self._drafters(options),
                sampling.greedy,
                options.adaptive,
            ),
        )
        return prepared

    def _drafters(self, options: RequestOptions) -> tuple[str, ...] | None:
        """The drafters of a request, None for the default ones; a prediction adds its drafter to these."""
        named: tuple[str, ...] | None = None
        if options.drafter is not None:
            named = () if options.drafter == NO_DRAFTER else (options.drafter,)
        return drafters_of(named, _prediction(options), self.drafters, self.default_drafters)

    def _max_draft_per_request(self, every: Sequence[_Prepared]) -> int:
        """An equal share of the step's token budget, so that every request is scheduled.

        0 while any request has a thinking budget on the V1 runner, which counts thinking tokens one output
        token at a time.
        """
        if any(each.has_thinking_budget for each in every) and not self.scheduler.use_v2_model_runner:
            return 0
        return max(0, int(self.scheduler.max_num_scheduled_tokens) // max(1, len(every)) - 1)

    def _max_draft(self, request: Any, limit: int, num_pending: int) -> int:
        """The draft tokens that a request can still emit after `num_pending` more tokens, at most `limit`.

        Each step emits one token more than the accepted draft tokens. Steps in flight count as if all their
        draft tokens were accepted.
        """
        num_pending += request.num_output_placeholders
        until_full: int = self.scheduler.max_model_len - request.num_tokens - num_pending
        until_done: int = request.max_tokens - request.num_output_tokens - num_pending
        return max(0, min(until_full - 1, until_done - 1, limit))


def view_of(request: Any, prediction: Tokens | None = None, sampling: SamplingParams = GREEDY) -> RequestView:
    """A request of vLLM as drafters see it; of its settings they see the temperature and the seed."""
    return RequestView(
        request.request_id,
        request.all_token_ids,
        num_prompt=request.num_prompt_tokens,
        salt=request.cache_salt,
        sampling=sampling,
        prediction=prediction,
    )


def is_decoding(request: Any) -> bool:
    """Whether the model has computed all of a request's tokens except the last."""
    return bool(not request.is_prefill_chunk and request.num_computed_tokens >= request.num_tokens - 1)


def _prediction(options: RequestOptions) -> Tokens | None:
    """The tokens of a predicted output; the front end has replaced its text by them."""
    if not options.prediction or isinstance(options.prediction, str):
        return None
    return np.array(options.prediction, dtype=np.int32)
