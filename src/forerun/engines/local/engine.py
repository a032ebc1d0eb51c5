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
from forerun.control import cost_cache
from forerun.control.controller import Step
from forerun.control.step_cost import StepCost
from forerun.core.logits_processors import check_token_ids
from forerun.core.tensors import torch
from forerun.engines.local.request import FinishReason, Request, Result, Update
from forerun.engines.local.running_request import RunningRequest
from forerun.engines.local.speculator import TreeSpeculator
from forerun.engines.local.startup import log_compilation, profile_step_cost
from forerun.engines.local.stop_checker import StopChecker
from forerun.engines.local.verification import verify_requests
from forerun.errors import ForerunError, InvalidRequest
from forerun.models.runner import InputRows, Runner, max_context_length
from forerun.types import Draft, Drafter, Verdict

MAX_PREFILL_ROWS: Final = 256
"""Maximum prompt tokens per forward pass, over all requests."""

PROFILED_DRAFT_TOKENS: Final = 16
"""Step costs are profiled up to this many draft tokens per request."""

MAX_PROFILED_ROWS: Final = 512
"""Step costs are profiled up to this many rows in total."""

Prefill: TypeAlias = tuple[RunningRequest, int]
"""A request that does not decode in this step, and the number of its prompt tokens to compute."""


class Engine:
    """Decodes requests on one model, with speculation if it has drafters.

    A request uses `default_drafters`, by default all of them, unless it names others. `tokenizer` is needed
    for text only. `eos_token_ids` are the model's end-of-sequence tokens. Without `cost`, an engine that
    adapts its draft lengths profiles the cost of forward passes.
    """

    def __init__(
        self,
        target: Runner,
        drafters: Mapping[str, Drafter] | None = None,
        *,
        default_drafters: Sequence[str] | None = None,
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
            cost = self._load_or_profile_cost(target) if needs_cost else StepCost((1, 2), (1.0, 1.0))
        self.speculator = TreeSpeculator(
            drafters or {}, default_drafters, cost, target.vocab_size, adaptive=self.config.adaptive
        )
        self.seconds = 0.0
        self._waiting: deque[Request] = deque()
        self._running: dict[str, RunningRequest] = {}
        self._final_updates: list[Update] = []

    def _load_or_profile_cost(self, target: Runner) -> StepCost:
        """The step cost of this model on this machine: from the cache, or profiled now and cached."""
        max_rows = target.cache.num_slots * (1 + min(self.config.max_draft, PROFILED_DRAFT_TOKENS))
        max_rows = min(max_rows, MAX_PROFILED_ROWS, target.max_length)
        threads = torch.get_num_threads()
        key = cost_cache.cache_key(engine="local", model=target.description, widest=max_rows, threads=threads)
        cost = cost_cache.load(key)
        if cost is None:
            cost = profile_step_cost(target.time_forward, max_rows)
            cost_cache.save(key, cost)
        return cost

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
        if len(request.prompt) >= self.target.max_length:
            raise InvalidRequest(
                f"the prompt has {len(request.prompt)} tokens; prompt and output must fit in"
                f" {self.target.max_length}: {self._length_remedy()}"
            )
        unknown = [token for token in request.prompt if not 0 <= token < self.target.vocab_size]
        if unknown:
            raise InvalidRequest(
                f"the prompt has token {unknown[0]}; the vocabulary has {self.target.vocab_size} tokens"
            )
        if self.tokenizer is None and any(isinstance(stop, str) for stop in request.stop):
            raise InvalidRequest(
                "a stop text needs a tokenizer, and the model has none: stop at token ids, pass tokenizer=,"
                " or add the tokenizer's files to the model's directory"
            )
        check_token_ids(request.sampling, self.target.vocab_size)
        self.speculator.check_known(request.drafters or ())
        self._waiting.append(request)

    def _length_remedy(self) -> str:
        """The advice for a prompt that is too long."""
        limit = max_context_length(self.target.model)
        if self.target.max_length < limit:
            return f"shorten it, or raise max_length (--max-length), for this model up to {limit}"
        return "shorten it; this is the model's own context length"

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
            step, drafts = self._draft(prefilling, decoding)
            survivals = self.speculator.survivals(step, drafts)
            logits = self._forward(prefilling, decoding, drafts)
            verdicts = self._verify(decoding, drafts, logits)
        except BaseException:  # for example out of memory, or an interrupt
            self._roll_back()
            raise
        updates, self._final_updates = self._final_updates, []
        updates += [
            self._commit(running, draft, verdict, survival)
            for running, draft, verdict, survival in zip(decoding, drafts, verdicts, survivals, strict=True)
        ]
        seconds = time.perf_counter() - began
        self.seconds += seconds
        request_ids = [running.request.id for running in decoding]
        self.speculator.end_step(step, request_ids, drafts, verdicts, seconds)
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
            running = RunningRequest(request, self.target.allocate(), stop_checker)
            self._running[request.id] = running
            self.speculator.admit(running)

    def _draft(
        self, prefilling: Sequence[Prefill], decoding: Sequence[RunningRequest]
    ) -> tuple[Step, list[Draft]]:
        """One draft per decoding request, empty where drafting does not pay."""
        num_rows = sum(num for _, num in prefilling) + sum(map(self._num_uncomputed, decoding))
        context = sum(self.target.length(running.slot) for running in self._running.values())
        budgets = [self._max_draft_tokens(running) for running in decoding]
        return self.speculator.draft(decoding, budgets, num_rows, context)

    def _max_draft_tokens(self, running: RunningRequest) -> int:
        """A request's draft budget: within its limits and its slot, and zero before its last token."""
        if running.stop_checker.num_remaining == 1:
            return 0
        max_draft = self.config.max_draft
        if running.request.max_draft is not None:
            max_draft = min(max_draft, running.request.max_draft)
        return min(max_draft, self.target.max_length - len(running.tokens))

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
        self, decoding: Sequence[RunningRequest], drafts: Sequence[Draft], logits: torch.Tensor
    ) -> list[Verdict | ForerunError]:
        """Verify all drafts; the KV cache commits the rows of accepted draft tokens and drops the others."""
        requests = [
            running.verify_request(
                draft, self._lenience(running.request), self.speculator.can_block_verify(running)
            )
            for running, draft in zip(decoding, drafts, strict=True)
        ]
        verdicts = verify_requests(requests, logits, self.config.verifier)
        paths = {}
        for running, verdict in zip(decoding, verdicts, strict=True):
            num_uncomputed = self._num_uncomputed(running)
            accepted = verdict.accepted if isinstance(verdict, Verdict) else ()
            paths[running.slot] = [*range(num_uncomputed), *(num_uncomputed + node for node in accepted)]
        self.target.commit(paths)
        return verdicts

    def _lenience(self, request: Request) -> float:
        return self.config.lenience if request.lenience is None else request.lenience

    def _roll_back(self) -> None:
        """Truncate every slot to the tokens committed before this step."""
        for running in self._running.values():
            self.target.truncate(running.slot, len(running.tokens) - 1)

    def _commit(
        self,
        running: RunningRequest,
        draft: Draft,
        verdict: Verdict | ForerunError,
        survival: tuple[float, ...],
    ) -> Update:
        """Append the tokens of a verdict to a request, report it to the drafters, finish it at a stop."""
        if isinstance(verdict, ForerunError):
            return self._finish(running, "error", error=verdict)
        try:
            tokens = running.commit(draft, verdict)
        except Exception as error:  # a tokenizer may raise anything
            fault = InvalidRequest(f"the tokenizer cannot decode the output: {error!r}")
            return self._finish(running, "error", error=fault)
        self.speculator.observe(running, draft, verdict)
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
        self.speculator.forget(running.view)
        result = running.result(reason, error)
        update = update or Update(running.request.id)
        return replace(update, text=update.text + running.stop_checker.take_text(), result=result)


def _decode_rows(slot: int, uncomputed: Sequence[int], draft: Draft) -> InputRows:
    """A request's uncomputed tokens with its draft tree behind the last one; logits from that one on."""
    num = len(uncomputed)
    parents = np.concatenate([np.arange(-1, num - 1), draft.parents + num])
    return InputRows(slot, np.concatenate([uncomputed, draft.tokens]), parents, num_logits=len(draft) + 1)
