"""Continuous batching with speculation, on one transformers model.

Requests are added and cancelled between steps. One `step()` schedules requests, drafts, runs one forward pass
of the target model, verifies the draft tokens and commits the accepted ones. Prompts are prefilled in chunks,
in the same forward passes in which other requests decode.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from forerun.config import SpeculationConfig
from forerun.control.step_cost import StepCost
from forerun.core.tensors import torch
from forerun.core.top_tokens import warm_up
from forerun.engines.guarded_drafter import DrafterTotals, DraftFormat
from forerun.engines.local.request import FinishReason, Request, Result, Update
from forerun.engines.local.request_checks import check_request
from forerun.engines.local.running_request import RunningRequest
from forerun.engines.local.startup import log_compilation
from forerun.engines.local.step_profiler import load_or_profile_cost
from forerun.engines.local.stop_checker import StopChecker
from forerun.engines.local.verification import verify_requests
from forerun.engines.speculative_step import DraftRequest, SpeculativeStep, drafters_of
from forerun.engines.speculator import Speculator
from forerun.engines.top_token_rows import top_tokens_of
from forerun.errors import ForerunError, InvalidRequest
from forerun.models.input_rows import InputRows
from forerun.models.runner import Runner
from forerun.types import Draft, Drafter, TopTokens, Verdict

MAX_PREFILL_ROWS: Final = 256
"""Maximum prompt tokens per forward pass, over all requests."""

Prefill: TypeAlias = tuple[RunningRequest, int]
"""A request that does not decode in this step, and the number of its prompt tokens to compute."""


class Engine:
    """Decodes requests on one model, with speculation if it has drafters.

    A request uses `default_drafters`, by default all of them, unless it names others; their drafts are merged
    into one tree, or without `trees` into one chain. `tokenizer` is needed for text only. `eos_token_ids` are
    the model's end-of-sequence tokens. Without `cost`, an engine that adapts its draft lengths profiles the
    cost of forward passes.
    """

    def __init__(
        self,
        target: Runner,
        drafters: Mapping[str, Drafter] | None = None,
        *,
        default_drafters: Sequence[str] | None = None,
        trees: bool = True,
        tokenizer: Any = None,
        eos_token_ids: frozenset[int] = frozenset(),
        config: SpeculationConfig | None = None,
        cost: StepCost | None = None,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        self.config = config or SpeculationConfig()
        if cost is None:
            needs_cost = drafters and self.config.adaptive
            cost = (
                load_or_profile_cost(target, self.config.max_draft)
                if needs_cost
                else StepCost((1, 2), (1.0, 1.0))
            )
        self.drafter_totals = DrafterTotals()
        warm_up()
        self.speculator = Speculator(
            drafters or {},
            cost,
            DraftFormat(target.vocab_size, trees=trees),
            default_drafters=default_drafters,
            adaptive=self.config.adaptive,
            counters=self.drafter_totals,
        )
        self.seconds = 0.0
        self._waiting: deque[Request] = deque()
        self._running: dict[str, RunningRequest] = {}
        self._final_updates: list[Update] = []

    @property
    def num_unfinished(self) -> int:
        """Waiting and running requests."""
        return len(self._waiting) + len(self._running)

    def add(self, request: Request) -> None:
        """Queue a request; raises if the engine cannot serve it."""
        if request.id in self._running or any(request.id == each.id for each in self._waiting):
            raise InvalidRequest(
                f"a request with id {request.id!r} is unfinished; give each request its own id"
            )
        check_request(request, self.target, has_tokenizer=self.tokenizer is not None)
        self.speculator.check_known(request.drafters or ())
        self._waiting.append(request)

    def cancel(self, request_id: str) -> None:
        """Abort a request; the next step returns its last update. Ignores finished and unknown requests."""
        for request in self._waiting:
            if request.id == request_id:
                self._waiting.remove(request)
                self._final_updates.append(Update(request_id, result=Result(request_id, "", (), "cancelled")))
                return
        if request_id in self._running:
            self._final_updates.append(self._finish(self._running[request_id], "cancelled"))

    def step(self) -> list[Update]:
        """Run one step for all running requests: schedule, draft, forward, verify, commit.

        A step that raises leaves every request as it was, so that it can be retried.
        """
        began = time.perf_counter()
        try:
            prefilling, decoding = self._schedule()
            step = self._draft(prefilling, decoding)
            survivals = self.speculator.survivals(step)
            logits = self._forward(prefilling, decoding, step.drafts)
            verdicts = self._verify(decoding, step, logits)
            recycled = self._top_tokens(decoding, step, logits)
        except BaseException:  # for example out of memory, or an interrupt
            self._roll_back()
            raise
        updates, self._final_updates = self._final_updates, []
        updates += [
            self._commit(running, step, verdict, survival, recycled.get(running.request.id))
            for running, verdict, survival in zip(decoding, verdicts, survivals, strict=True)
        ]
        seconds = time.perf_counter() - began
        self.seconds += seconds
        self.speculator.close(step, seconds)
        return updates

    def stream(self) -> Iterator[Update]:
        """Step until no request is unfinished; requests may be added and cancelled meanwhile."""
        while self.num_unfinished or self._final_updates:
            with log_compilation():
                updates = self.step()
            yield from updates

    def _schedule(self) -> tuple[list[Prefill], list[RunningRequest]]:
        """Admit waiting requests; return the requests that only prefill, and those that decode in this step.

        A request decodes once the rest of its prompt fits in what is left of `MAX_PREFILL_ROWS`.
        """
        self._admit()
        prefilling, decoding, budget = [], [], MAX_PREFILL_ROWS
        for running in self._running.values():
            num_uncomputed = self._num_uncomputed(running)
            if num_uncomputed == 1 or num_uncomputed <= budget:
                decoding.append(running)
            elif budget:
                prefilling.append((running, budget))
            budget = max(0, budget - (num_uncomputed if num_uncomputed > 1 else 0))
        return prefilling, decoding

    def _admit(self) -> None:
        """Allocate slots to waiting requests, first come, first served."""
        while self._waiting and self.target.cache.num_free:
            request = self._waiting.popleft()
            max_tokens = min(request.max_tokens, self.target.max_length - len(request.prompt))
            eos_token_ids = frozenset() if request.ignore_end else self.eos_token_ids
            stop_checker = StopChecker(self.tokenizer, request.stop, eos_token_ids, max_tokens)
            self._running[request.id] = RunningRequest(request, self.target.allocate(), stop_checker)

    def _draft(self, prefilling: Sequence[Prefill], decoding: Sequence[RunningRequest]) -> SpeculativeStep:
        """A step with one draft per decoding request, empty where drafting does not pay."""
        num_rows = sum(num for _, num in prefilling) + sum(map(self._num_uncomputed, decoding))
        context = sum(self.target.length(running.slot) for running in self._running.values())
        step = self.speculator.draft([self._draft_request(each) for each in decoding], num_rows, context)
        self.speculator.choose(step)
        return step

    def _draft_request(self, running: RunningRequest) -> DraftRequest:
        request, speculator = running.request, self.speculator
        named = (request.drafters, request.prediction)
        drafters = drafters_of(*named, speculator.drafters, speculator.default_drafters)
        return DraftRequest(running.view, self._max_draft_tokens(running), drafters, request.sampling.greedy)

    def _max_draft_tokens(self, running: RunningRequest) -> int:
        """A request's draft budget: within its limits and its slot, and zero before its last token."""
        if running.stop_checker.num_remaining == 1:
            return 0
        room = self.target.max_length - len(running.tokens)
        limits = (running.request.max_draft, self.config.max_draft, room)
        return min(limit for limit in limits if limit is not None)

    def _forward(
        self, prefilling: Sequence[Prefill], decoding: Sequence[RunningRequest], drafts: Sequence[Draft]
    ) -> torch.Tensor:
        """One forward pass over prompt chunks, last tokens and draft tokens; the logits of decoding rows."""
        inputs = [
            *(
                InputRows(running.slot, self._uncomputed(running)[:num], num_logits=0)
                for running, num in prefilling
            ),
            *(
                _decode_rows(running.slot, self._uncomputed(running), draft)
                for running, draft in zip(decoding, drafts, strict=True)
            ),
        ]
        logits = self.target.forward(inputs) if inputs else torch.empty(0, self.target.vocab_size)
        self.target.commit({running.slot: range(num) for running, num in prefilling})
        return logits

    def _uncomputed(self, running: RunningRequest) -> list[int]:
        """The tokens without keys and values in the cache."""
        return running.tokens[self.target.length(running.slot) :]

    def _num_uncomputed(self, running: RunningRequest) -> int:
        return len(running.tokens) - self.target.length(running.slot)

    def _verify(
        self, decoding: Sequence[RunningRequest], step: SpeculativeStep, logits: torch.Tensor
    ) -> list[Verdict | ForerunError]:
        """Verify all drafts; the KV cache commits the rows of accepted draft tokens and drops the others."""
        requests = [
            running.verify_request(
                draft, self._lenience(running.request), self.speculator.merger.can_block_verify(step, index)
            )
            for index, (running, draft) in enumerate(zip(decoding, step.drafts, strict=True))
        ]
        verdicts = verify_requests(requests, logits, self.config.verifier)
        paths = {}
        for running, verdict in zip(decoding, verdicts, strict=True):
            num_uncomputed = self._num_uncomputed(running)
            accepted = verdict.accepted if isinstance(verdict, Verdict) else ()
            paths[running.slot] = [*range(num_uncomputed), *(num_uncomputed + node for node in accepted)]
        self.target.commit(paths)
        return verdicts

    def _top_tokens(
        self, decoding: Sequence[RunningRequest], step: SpeculativeStep, logits: torch.Tensor
    ) -> dict[str, TopTokens]:
        """The likeliest next tokens at the rows of requests whose drafters learn from them."""
        texts = [running.tokens for running in decoding]
        found = top_tokens_of(step.wants_logits, texts, step.drafts, logits)
        return {decoding[index].request.id: each for index, each in found.items()}

    def _lenience(self, request: Request) -> float:
        return self.config.lenience if request.lenience is None else request.lenience

    def _roll_back(self) -> None:
        """Truncate every slot to the tokens committed before this step."""
        for running in self._running.values():
            self.target.truncate(running.slot, len(running.tokens) - 1)

    def _commit(
        self,
        running: RunningRequest,
        step: SpeculativeStep,
        verdict: Verdict | ForerunError,
        survival: tuple[float, ...],
        recycled: TopTokens | None,
    ) -> Update:
        """Append the tokens of a verdict to a request, report it to the drafters, finish it at a stop."""
        if isinstance(verdict, ForerunError):
            return self._finish(running, "error", error=verdict)
        draft = step.draft_of(running.request.id)
        try:
            tokens = running.commit(draft, verdict)
        except Exception as error:  # a tokenizer may raise anything
            fault = InvalidRequest(f"the tokenizer cannot decode the output: {error!r}")
            return self._finish(running, "error", error=fault)
        self.speculator.observe(step, running.request.id, verdict, top_tokens=recycled)
        reason = running.stop_checker.reason
        text = running.stop_checker.take_text()
        update = Update(running.request.id, tuple(tokens), text, draft, verdict, survival=survival)
        return update if reason is None else self._finish(running, reason, update)

    def _finish(
        self,
        running: RunningRequest,
        reason: FinishReason,
        update: Update | None = None,
        error: ForerunError | None = None,
    ) -> Update:
        """Free a request's slot and state; return its last update."""
        del self._running[running.request.id]
        self.target.free(running.slot)
        self.speculator.forget(running.request.id, running.view)
        result = running.result(reason, error)
        update = update or Update(running.request.id)
        return replace(update, text=update.text + running.stop_checker.take_text(), result=result)


def _decode_rows(slot: int, uncomputed: Sequence[int], draft: Draft) -> InputRows:
    """A request's uncomputed tokens with its draft tree behind the last one; logits from that one on."""
    num = len(uncomputed)
    parents = np.concatenate([np.arange(-1, num - 1), draft.parents + num])
    return InputRows(slot, np.concatenate([uncomputed, draft.tokens]), parents, num_logits=len(draft) + 1)
