"""The scheduler that drafts, for vLLM's `scheduler_cls`.

The scheduler sees every request's tokens, sampling settings and salt, and it runs once for all ranks, so ranks
cannot disagree about drafts. The worker's proposer is `forerun.engines.vllm.NullProposer`, or vLLM's draft
model, whose draft length the scheduler sets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler

from forerun.control.controller import Step
from forerun.engines.vllm import step_profiler
from forerun.engines.vllm.contract import check
from forerun.engines.vllm.grammar import forced
from forerun.engines.vllm.request_options import DEFAULT_OPTIONS, RequestOptions
from forerun.engines.vllm.speculator import ChainSpeculator, DraftRequest, ProposedDraft
from forerun.engines.vllm.stats import PeriodicStatsLogger, logger
from forerun.engines.vllm.step_plan import StepPlan, attach
from forerun.types import RequestView

FORCED: Final = 0.98
"""The chance of a token that its grammar forces: the text could have been spelled another way."""


@dataclass(slots=True)
class InFlightStep:
    """A step on its way: what every request in it was offered, and when it began; how long it took."""

    step: Step
    offers: dict[str, ProposedDraft]
    began: float
    seconds: float = 0.0


class Scheduler(StockScheduler):  # type: ignore[misc]
    """Gives every request that is decoding its guesses, right before each step is put together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check()
        super().__init__(*args, **kwargs)
        cost = step_profiler.find(self.vllm_config)
        self.guesser = ChainSpeculator(self.vllm_config, cost)
        self._measured = cost is not None
        self.wishes: dict[str, RequestOptions] = {}
        tally = self.guesser.tally
        tally.publish(self.vllm_config.instance_id, self.vllm_config.parallel_config.data_parallel_index)
        self.minutes = PeriodicStatsLogger(tally, time.monotonic())
        self._drawn: set[str] = set()
        self._allotted: dict[str, int] = {}
        self._followed: dict[str, bool] = {}
        self._draft_paused = False
        self._underway: dict[int, InFlightStep] = {}
        self._over: list[InFlightStep] = []
        self._last = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Guess, then schedule as vLLM does."""
        began = time.perf_counter()
        self._close()
        decoding = [request for request in self.running if _is_decoding(request)]
        self._drawn = set()
        asks = self._asks(decoding)
        step = self.guesser.begin_step(
            asks, rows=len(asks) + self._num_reading(len(asks)), context=self._context(decoding)
        )
        offers = self._offers(step, decoding, asks)
        for request, offer in zip(decoding, offers, strict=True):
            request.spec_token_ids = offer.tokens
        self.guesser.tally.known(len(self.guesser.known))
        with self._nothing_padded():
            output = super().schedule(*args, **kwargs)
        for request in decoding:
            if request.request_id not in output.num_scheduled_tokens:
                request.spec_token_ids = []
        num_checked = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        step.rows = output.total_num_scheduled_tokens - num_checked
        if self._has_model:
            output.num_spec_tokens_to_schedule = self._allot(output, step)
            attach(output, StepPlan(frozenset(self._drawn)))
        if output.total_num_scheduled_tokens:
            by_name = {ask.name: offer for ask, offer in zip(asks, offers, strict=True)}
            self._underway[id(output)] = InFlightStep(step, by_name, began)
        return output

    @property
    def _has_model(self) -> bool:
        """Whether a draft model guesses too."""
        return "model" in self.guesser.names

    def _num_reading(self, num_decoding: int) -> int:
        """About how many rows of prompts the next step reads beside those that decode."""
        free = max(0, self.max_num_running_reqs - len(self.running))
        reading = [request for request in self.running if not _is_decoding(request)]
        reading += islice(self.waiting, free)
        left: int = sum(request.num_tokens - request.num_computed_tokens for request in reading)
        most: int = self.max_num_scheduled_tokens - num_decoding
        return max(0, min(left, most))

    def _context(self, requests: list[Any]) -> int:
        return sum(request.num_computed_tokens for request in requests)

    def _asks(self, decoding: list[Any], said: int = 0) -> list[DraftRequest]:
        """Who wants guesses, and how many at most, after so many more tokens."""
        share = self._share(decoding)
        asks = []
        for request in decoding:
            wish = self._wishes(request)
            room = min(share, self._room(request, wish, said))
            asks.append(DraftRequest(_view(request), room, wish.drafter, _is_greedy(request), wish.adaptive))
        return asks

    def _allot(self, output: Any, step: Step) -> int:
        """How far the draft model is to guess at the end of this step, for everybody who will then decode.

        If it does not pay for anybody the model is not run, and has a hole in its memory of these requests:
        it guesses for them no more. New ones it follows from the first.
        """
        scheduled = output.num_scheduled_tokens
        requests = [self.requests[name] for name in scheduled]
        asks = self._asks(requests, said=1)
        for request in requests:
            known = request.num_computed_tokens > scheduled[request.request_id] and self._draft_paused
            self._followed.setdefault(request.request_id, not known)
        rooms = [ask.room if self._may_draw(ask) else 0 for ask in asks]
        ahead = self.guesser.begin_step(asks, rows=len(asks), context=self._context(requests))
        ahead.plain = False
        budgets = self.guesser.controller.draft_lengths(ahead, "model", np.array(rooms), step.num_reading)
        self._allotted = {ask.name: budget for ask, budget in zip(asks, budgets.tolist(), strict=True)}
        deepest = max(self._allotted.values(), default=0)
        self._followed.update((ask.name, deepest > 0 and self._may_draw(ask)) for ask in asks)
        self._draft_paused = self._draft_paused or (bool(asks) and deepest == 0)
        return deepest

    def _may_draw(self, ask: DraftRequest) -> bool:
        """Whether the draft model may guess for a request that wants it: it has to have read all of it. What
        was found in vLLM's cache of prefixes it may not have, once it was not run for a step.
        """
        return ask.drafter in {None, "model"} and self._followed[ask.name]

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
        if self._has_model and seconds is not None and draft_token_ids.draft_token_ids and self._over:
            self.guesser.tally.add_seconds("model", seconds)
            depth, step = len(draft_token_ids.draft_token_ids[0]), self._over[-1].step
            self.guesser.controller.record_draft_time(step, "model", depth, seconds, step.num_reading)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Hear what was said, then go on as vLLM does."""
        now = time.perf_counter()
        underway = self._underway.pop(id(scheduler_output), None)
        if underway is not None:
            said, places = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
            checked = scheduler_output.scheduled_spec_decode_tokens
            for name, offer in underway.offers.items():
                if said and name in places:
                    self.guesser.observe(name, offer, said[places[name]], len(checked.get(name, ())))
            underway.seconds = now - max(underway.began, self._last)
            self._over.append(underway)
        self._last = now
        if line := self.minutes.line(time.monotonic()):
            logger.info("%s", line)
            if self._measured:  # what began as a typical curve is too coarse to be kept
                step_profiler.keep(self.vllm_config, self.guesser.controller.cost)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _close(self) -> None:
        """Steps that are over are closed before the next begins: how long the draft model took comes late."""
        for each in self._over:
            self.guesser.close(each.step, list(each.offers.values()), each.seconds)
        self._over.clear()

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Forget a request that is over, with all that it said."""
        self.guesser.forget(request.request_id, _view(request))
        self.wishes.pop(request.request_id, None)
        self._followed.pop(request.request_id, None)
        self.guesser.tally.known(len(self.guesser.known))
        self.guesser.tally.costs(self.guesser.controller.cost)
        return super()._free_request(request, *args, **kwargs)

    def _offers(self, step: Step, decoding: list[Any], asks: list[DraftRequest]) -> list[ProposedDraft]:
        """What every request is offered: looked up, forced by its grammar, or drawn by the draft model."""
        offers = self.guesser.draft(step, asks)
        for request, ask, offer in zip(decoding, asks, offers, strict=True):
            if request.use_structured_output:
                self._obey_grammar(request, ask, offer)
        if self._has_model:
            self._prefer_drawn(step, decoding, asks, offers)
        self.guesser.choose(step, offers)
        return offers

    def _prefer_drawn(
        self, step: Step, decoding: list[Any], asks: list[DraftRequest], offers: list[ProposedDraft]
    ) -> None:
        """Offer the draft model's guesses where they are worth more, where there are no others that pay, and
        where they are asked for; none of them is looked at.
        """
        drawn = [ProposedDraft(drawn=True) for _ in offers]
        for request, ask, offer in zip(decoding, asks, drawn, strict=True):
            if ask.drafter in {None, "model"}:
                most = min(ask.room, self._allotted.get(ask.name, 0))
                offer.extend(request.spec_token_ids[:most], "model")
        if not any(offer.tokens for offer in drawn):
            return
        theirs, ours = self.guesser.expected_gain(step, drawn), self.guesser.expected_gain(step, offers)
        for place, offer in enumerate(drawn):
            better = theirs[place] > ours[place] or not ours[place]
            if offer.tokens and (better or asks[place].drafter == "model"):
                offers[place] = offer
                self._drawn.add(asks[place].name)

    def _obey_grammar(self, request: Any, ask: DraftRequest, offer: ProposedDraft) -> None:
        """Cut an offer to what the request's grammar allows, and add what it forces."""
        manager = self.structured_output_manager
        offer.truncate(len(manager.validate_tokens(request, offer.tokens)))
        grammar = request.structured_output_request.grammar
        if "grammar" not in self.guesser.names or ask.drafter not in {None, "grammar"} or grammar is None:
            return
        if self._is_constrained(request):
            encode = partial(manager.tokenizer.encode, add_special_tokens=False)
            tokens = forced(grammar, offer.tokens, ask.room - len(offer.tokens), encode)
            offer.extend(tokens, "grammar", chance=FORCED)

    def _is_constrained(self, request: Any) -> bool:
        """Whether the grammar of a request holds already: it may begin after the model has reasoned."""
        manager = self.structured_output_manager
        ended = request.structured_output_request.reasoning_ended
        return bool(manager.reasoner_cls is None or manager.enable_in_reasoning or ended)

    def _wishes(self, request: Any) -> RequestOptions:
        """What a request asks of speculation; the front end has refused what cannot be meant."""
        known = self.wishes.get(request.request_id)
        if known is None:
            params = request.sampling_params
            known = (
                DEFAULT_OPTIONS
                if params is None
                else RequestOptions.read(params.extra_args, self.guesser.names)
            )
            self.wishes[request.request_id] = known
        return known

    def _share(self, decoding: list[Any]) -> int:
        """How many guesses everybody can have at most, so that the last is not left without a step.

        None, while vLLM bounds anybody's thoughts: its count of them follows what is said, token by token.
        """
        if any(request.sampling_params.thinking_token_budget is not None for request in decoding):
            return 0
        return max(0, int(self.max_num_scheduled_tokens) // max(1, len(decoding)) - 1)

    def _room(self, request: Any, wishes: RequestOptions, said: int) -> int:
        """How many guesses could still be said after so many tokens, as each step says one token more than
        were guessed, and how many are wished for.
        """
        until_full: int = self.max_model_len - request.num_tokens - said
        until_done: int = request.max_tokens - request.num_output_tokens - said
        most = self.guesser.most_guesses
        wished = most if wishes.max_draft is None else wishes.max_draft
        return max(0, min(until_full - 1, until_done - 1, wished, most))


def _is_decoding(request: Any) -> bool:
    """Whether all that is known of a request but its last token has been through the model."""
    return bool(not request.is_prefill_chunk and request.num_computed_tokens >= request.num_tokens - 1)


def _is_greedy(request: Any) -> bool:
    """Whether the target takes its most likely token."""
    params = request.sampling_params
    return params is None or params.temperature < 1e-5


def _view(request: Any) -> RequestView:
    return RequestView(
        request.request_id,
        request.all_token_ids,
        num_prompt=request.num_prompt_tokens,
        salt=request.cache_salt,
    )
