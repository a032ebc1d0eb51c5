"""vLLM's scheduler, guessing. `scheduler_cls` takes the path of the class below.

It alone sees every request's tokens, settings and salt, and it runs once however many ranks there are, so
that ranks cannot disagree about guesses. The worker's own drafter is then `forerun.engines.vllm.Nobody`.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler

from forerun.engines.vllm.contract import check
from forerun.engines.vllm.guesser import Guesser
from forerun.types import RequestView


class Scheduler(StockScheduler):  # type: ignore[misc]
    """Gives every request that is decoding its guesses, right before each step is put together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check()
        super().__init__(*args, **kwargs)
        self.guesser = Guesser(self.vllm_config)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Guess, then schedule as vLLM does."""
        decoding = [request for request in self.running if _is_decoding(request)]
        views = [_view(request) for request in decoding]
        guesses = self.guesser.guess(views, [self._room(request) for request in decoding])
        for request, tokens in zip(decoding, guesses, strict=True):
            request.spec_token_ids = self.structured_output_manager.validate_tokens(request, tokens)
        return super().schedule(*args, **kwargs)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Hear what was said, then go on as vLLM does."""
        said = model_runner_output.sampled_token_ids
        for name in scheduler_output.num_scheduled_tokens:
            place = model_runner_output.req_id_to_index.get(name)
            if said and place is not None:
                self.guesser.hear(name, said[place])
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Forget a request that is over, with all that it said."""
        self.guesser.forget(request.request_id, _view(request))
        return super()._free_request(request, *args, **kwargs)

    def _room(self, request: Any) -> int:
        """How many guesses could still be said: each step says one token more than were guessed."""
        left = min(self.max_model_len - request.num_tokens, request.max_tokens - request.num_output_tokens)
        return int(left) - 1


def _is_decoding(request: Any) -> bool:
    """Whether all that is known of a request but its last token has been through the model."""
    return bool(not request.is_prefill_chunk and request.num_computed_tokens >= request.num_tokens - 1)


def _view(request: Any) -> RequestView:
    return RequestView(
        request.request_id,
        request.all_token_ids,
        num_prompt=request.num_prompt_tokens,
        salt=request.cache_salt,
    )
