"""vLLM's scheduler, guessing. `scheduler_cls` takes the path of the class below.

It alone sees every request's tokens, settings and salt, and it runs once however many ranks there are, so
that ranks cannot disagree about guesses. The worker's own drafter is then `forerun.engines.vllm.Nobody`, or
vLLM's draft model, which is told here how far to guess.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler

from forerun.control.pace import Pace
from forerun.engines.vllm.contract import check
from forerun.engines.vllm.grammar import forced
from forerun.engines.vllm.guesser import Guesser, Offer
from forerun.engines.vllm.plan import Plan, attach
from forerun.engines.vllm.tally import Minutes, logger
from forerun.engines.vllm.wishes import NO_WISHES, Wishes
from forerun.types import RequestView


class Scheduler(StockScheduler):  # type: ignore[misc]
    """Gives every request that is decoding its guesses, right before each step is put together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check()
        super().__init__(*args, **kwargs)
        self.guesser = Guesser(self.vllm_config)
        self.pace = Pace(self.guesser.most_guesses) if "model" in self.guesser.names else None
        self.wishes: dict[str, Wishes] = {}
        tally = self.guesser.tally
        tally.publish(self.vllm_config.instance_id, self.vllm_config.parallel_config.data_parallel_index)
        self.minutes = Minutes(tally, time.monotonic())
        self._drawn: set[str] = set()
        self._began = self._took = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Guess, then schedule as vLLM does."""
        decoding = [request for request in self.running if _is_decoding(request)]
        self._drawn = set()
        for request, offer in zip(decoding, self._offers(decoding), strict=True):
            request.spec_token_ids = offer.tokens
        self.guesser.tally.known(len(self.guesser.known | self.wishes.keys()))
        with self._nothing_padded():
            output = super().schedule(*args, **kwargs)
        for request in decoding:
            if request.request_id not in output.num_scheduled_tokens:
                request.spec_token_ids = []
                self.guesser.withdraw(request.request_id)
        if self.pace is not None:
            output.num_spec_tokens_to_schedule = self.pace.how_far() if self._wants_model(output) else 0
            attach(output, Plan(frozenset(self._drawn)))
        self._began = time.perf_counter()
        return output

    @contextmanager
    def _nothing_padded(self) -> Iterator[None]:
        """While this lasts, vLLM does not fill up new requests with guesses that nobody made."""
        num_spec_tokens: int = vars(self)["num_spec_tokens"]
        self.num_spec_tokens = 0
        try:
            yield
        finally:
            self.num_spec_tokens = num_spec_tokens

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """The draft model has guessed for the next step."""
        super().update_draft_token_ids(draft_token_ids)
        seconds = getattr(draft_token_ids, "seconds", None)
        if self.pace is not None and seconds is not None and draft_token_ids.draft_token_ids:
            self.guesser.tally.spent("model", seconds)
            num_guesses = len(draft_token_ids.draft_token_ids[0])
            self.pace.timed(num_guesses, seconds, self._took)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Hear what was said, then go on as vLLM does."""
        self._took = time.perf_counter() - self._began
        said = model_runner_output.sampled_token_ids
        checked = scheduler_output.scheduled_spec_decode_tokens
        for name in scheduler_output.num_scheduled_tokens:
            place = model_runner_output.req_id_to_index.get(name)
            if said and place is not None:
                num_checked = len(checked.get(name, ()))
                self.guesser.hear(name, said[place], num_checked)
                if self.pace is not None and name in self._drawn and said[place] and num_checked:
                    self.pace.heard(num_checked, len(said[place]) - 1)
        if line := self.minutes.line(time.monotonic()):
            logger.info("%s", line)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Forget a request that is over, with all that it said."""
        self.guesser.forget(request.request_id, _view(request))
        self.wishes.pop(request.request_id, None)
        self.guesser.tally.known(len(self.guesser.known | self.wishes.keys()))
        return super()._free_request(request, *args, **kwargs)

    def _offers(self, decoding: list[Any]) -> list[Offer]:
        """What every request is offered: looked up, forced by its grammar, or drawn by the draft model."""
        wishes = [self._wishes(request) for request in decoding]
        share = self._share(decoding)
        rooms = [min(share, self._room(*each)) for each in zip(decoding, wishes, strict=True)]
        offers = self.guesser.guess(
            [_view(request) for request in decoding], rooms, [each.drafter for each in wishes]
        )
        for request, wish, room, offer in zip(decoding, wishes, rooms, offers, strict=True):
            drawn = request.spec_token_ids[:room]
            if request.use_structured_output:
                self._obey_grammar(request, wish, room, offer)
            if self.pace is not None and drawn and self._prefers_drawn(wish, offer, len(drawn)):
                offer.cut(0)
                offer.extend(drawn, "model")
                self._drawn.add(request.request_id)
        return offers

    def _obey_grammar(self, request: Any, wishes: Wishes, room: int, offer: Offer) -> None:
        """Cut an offer to what the request's grammar allows, and add what it forces."""
        manager = self.structured_output_manager
        offer.cut(len(manager.validate_tokens(request, offer.tokens)))
        grammar = request.structured_output_request.grammar
        if "grammar" not in self.guesser.names or wishes.drafter not in {None, "grammar"} or grammar is None:
            return
        if self._is_constrained(request):
            encode = partial(manager.tokenizer.encode, add_special_tokens=False)
            offer.extend(forced(grammar, offer.tokens, room - len(offer.tokens), encode), "grammar")

    def _is_constrained(self, request: Any) -> bool:
        """Whether the grammar of a request holds already: it may begin after the model has reasoned."""
        manager = self.structured_output_manager
        ended = request.structured_output_request.reasoning_ended
        return bool(manager.reasoner_cls is None or manager.enable_in_reasoning or ended)

    def _prefers_drawn(self, wishes: Wishes, offer: Offer, num_drawn: int) -> bool:
        """Whether the draft model's guesses are offered instead; no value of theirs is looked at."""
        assert self.pace is not None
        if wishes.drafter is not None:
            return wishes.drafter == "model"
        return self.pace.expected(num_drawn) > offer.expected

    def _wants_model(self, output: Any) -> bool:
        """Whether anybody in a step may be guessed for by the draft model."""
        return any(
            (wish := self._wishes(self.requests[name])).drafter in {None, "model"} and wish.max_draft != 0
            for name in output.num_scheduled_tokens
        )

    def _wishes(self, request: Any) -> Wishes:
        """What a request asks of speculation; the front end has refused what cannot be meant."""
        known = self.wishes.get(request.request_id)
        if known is None:
            params = request.sampling_params
            known = NO_WISHES if params is None else Wishes.read(params.extra_args, self.guesser.names)
            self.wishes[request.request_id] = known
        return known

    def _share(self, decoding: list[Any]) -> int:
        """How many guesses everybody can have at most, so that the last is not left without a step.

        None, while vLLM bounds anybody's thoughts: its count of them follows what is said, token by token.
        """
        if any(request.sampling_params.thinking_token_budget is not None for request in decoding):
            return 0
        return max(0, int(self.max_num_scheduled_tokens) // max(1, len(decoding)) - 1)

    def _room(self, request: Any, wishes: Wishes) -> int:
        """How many guesses could still be said, as each step says one token more than were guessed, and
        how many are wished for.
        """
        until_full: int = self.max_model_len - request.num_tokens
        until_done: int = request.max_tokens - request.num_output_tokens
        most = self.guesser.most_guesses
        wished = most if wishes.max_draft is None else wishes.max_draft
        return max(0, min(until_full - 1, until_done - 1, wished, most))


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
