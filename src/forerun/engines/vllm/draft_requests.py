"""vLLM's requests as the speculator sees them: tokens, draft budget, drafters and sampling class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.engines.speculative_step import DraftRequest
from forerun.engines.vllm.request_options import DEFAULT_OPTIONS, NO_DRAFTER, RequestOptions
from forerun.types import RequestView


class DraftRequestBuilder:
    """Builds the draft requests of a batch; remembers the options of each request until it is forgotten.

    `drafters` are the names that options may use, `max_draft_tokens` is the limit of every request.
    """

    def __init__(self, scheduler: Any, drafters: Sequence[str], max_draft_tokens: int) -> None:
        self.scheduler = scheduler
        self.drafters = drafters
        self.max_draft_tokens = max_draft_tokens
        self.options: dict[str, RequestOptions] = {}

    def build(self, requests: Sequence[Any], num_pending: int = 0) -> list[DraftRequest]:
        """The draft requests of a batch, after `num_pending` more tokens of every request."""
        share = self._max_draft_per_request(requests)
        result = []
        for request in requests:
            options = self._options_of(request)
            budget = min(share, self._max_draft(request, options, num_pending))
            drafters = _drafters(options)
            result.append(
                DraftRequest(view_of(request), budget, drafters, _is_greedy(request), options.adaptive)
            )
        return result

    def drafters_of(self, request_id: str) -> tuple[str, ...] | None:
        """The drafters that a request names; None for the server's default ones."""
        return _drafters(self.options.get(request_id, DEFAULT_OPTIONS))

    def forget(self, request_id: str) -> None:
        """Drop the options of a finished request."""
        self.options.pop(request_id, None)

    def _options_of(self, request: Any) -> RequestOptions:
        """The speculation options of a request; the front end has rejected invalid ones."""
        options = self.options.get(request.request_id)
        if options is None:
            params = request.sampling_params
            options = (
                DEFAULT_OPTIONS
                if params is None
                else RequestOptions.parse_or_default(params.extra_args, self.drafters)
            )
            self.options[request.request_id] = options
        return options

    def _max_draft_per_request(self, requests: Sequence[Any]) -> int:
        """An equal share of the step's token budget, so that every request is scheduled.

        0 while any request has a thinking budget on the V1 runner, which counts thinking tokens one output
        token at a time.
        """
        if not self.scheduler.use_v2_model_runner and any(map(_has_thinking_budget, requests)):
            return 0
        return max(0, int(self.scheduler.max_num_scheduled_tokens) // max(1, len(requests)) - 1)

    def _max_draft(self, request: Any, options: RequestOptions, num_pending: int) -> int:
        """The draft tokens that a request can still emit after `num_pending` more tokens, within its options.

        Each step emits one token more than the accepted draft tokens. Steps in flight count as if all their
        draft tokens were accepted.
        """
        num_pending += request.num_output_placeholders
        until_full: int = self.scheduler.max_model_len - request.num_tokens - num_pending
        until_done: int = request.max_tokens - request.num_output_tokens - num_pending
        limit = self.max_draft_tokens
        requested = limit if options.max_draft is None else options.max_draft
        return max(0, min(until_full - 1, until_done - 1, requested, limit))


def view_of(request: Any) -> RequestView:
    """A request of vLLM as drafters see it."""
    return RequestView(
        request.request_id,
        request.all_token_ids,
        num_prompt=request.num_prompt_tokens,
        salt=request.cache_salt,
    )


def is_decoding(request: Any) -> bool:
    """Whether the model has computed all of a request's tokens except the last."""
    return bool(not request.is_prefill_chunk and request.num_computed_tokens >= request.num_tokens - 1)


def _drafters(options: RequestOptions) -> tuple[str, ...] | None:
    """The drafters that a request names; None for the server's default ones."""
    if options.drafter is None:
        return None
    return () if options.drafter == NO_DRAFTER else (options.drafter,)


def _has_thinking_budget(request: Any) -> bool:
    return request.sampling_params.thinking_token_budget is not None


def _is_greedy(request: Any) -> bool:
    params = request.sampling_params
    return params is None or params.temperature < 1e-5
