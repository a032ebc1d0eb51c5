"""Continuous batching with speculation, on one model of transformers.

Requests come and go at any step. Everything in between is `step()`: admit whoever fits, guess, read all
guesses in one pass of the model, judge them, commit what stands. Prompts are read in the same passes, a
piece at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any, Final

import numpy as np

from forerun.config import SpeculationConfig
from forerun.control import cost_cache
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
from forerun.models.runner import InputRows, Runner, longest
from forerun.types import Draft, Drafter, Verdict

CHUNK: Final = 256
"""Rows of prompts that a pass reads at most, all requests together."""

DEEP: Final = 16
WIDEST: Final = 512
"""Passes are measured with up to so many guesses for everybody, and up to so many rows in all."""


class Engine:
    """Requests on one model. Without `drafters` it decodes plainly; those that are `usual`, all of them if
    nothing is said, guess together, unless a request names others.

    `tokenizer` is needed for text only. `ends` are the model's own end tokens. What passes `cost` is measured
    if it is not given and somebody guesses.
    """

    def __init__(
        self,
        target: Runner,
        drafters: Mapping[str, Drafter] | None = None,
        *,
        usual: Many[str] | None = None,
        tokenizer: Any = None,
        ends: frozenset[int] = frozenset(),
        config: SpeculationConfig | None = None,
        cost: StepCost | None = None,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.ends = ends
        self.config = config or SpeculationConfig()
        if cost is None:
            decides = drafters and self.config.adaptive
            cost = self._measured(target) if decides else StepCost((1, 2), (1.0, 1.0))
        self.guesser = TreeSpeculator(
            drafters or {}, usual, cost, target.vocab_size, adaptive=self.config.adaptive
        )
        self.seconds = 0.0
        self._waiting: deque[Request] = deque()
        self._running: dict[str, RunningRequest] = {}
        self._over: list[Update] = []

    def _measured(self, target: Runner) -> StepCost:
        """What passes cost: as it was kept when it was last measured here, or measured now."""
        widest = target.cache.num_slots * (1 + min(self.config.max_draft, DEEP))
        widest = min(widest, WIDEST, target.max_length)
        threads = torch.get_num_threads()
        name = cost_cache.cache_key(engine="local", model=target.description, widest=widest, threads=threads)
        cost = cost_cache.load(name)
        if cost is None:
            cost = profile_step_cost(target.time_forward, widest)
            cost_cache.save(name, cost)
        return cost

    @property
    def num_unfinished(self) -> int:
        """Requests that still want something."""
        return len(self._waiting) + len(self._running)

    def add(self, request: Request) -> None:
        """Take a request; raises if it cannot be answered."""
        if request.id in self._running or any(request.id == each.id for each in self._waiting):
            raise InvalidRequest(f"a request called {request.id!r} is on its way; give every one its own id")
        if len(request.prompt) >= self.target.max_length:
            raise InvalidRequest(
                f"the prompt has {len(request.prompt)} tokens; prompt and output must fit in"
                f" {self.target.max_length}: {self._length_remedy()}"
            )
        unknown = [token for token in request.prompt if not 0 <= token < self.target.vocab_size]
        if unknown:
            raise InvalidRequest(
                f"the prompt holds token {unknown[0]}; the vocabulary has {self.target.vocab_size}"
            )
        if self.tokenizer is None and any(isinstance(stop, str) for stop in request.stop):
            raise InvalidRequest(
                "a stop text needs a tokenizer, and the model has none: stop at token ids, pass tokenizer=,"
                " or add the tokenizer's files to the model's directory"
            )
        check_token_ids(request.sampling, self.target.vocab_size)
        self.guesser.check_known(request.drafters or ())
        self._waiting.append(request)

    def _length_remedy(self) -> str:
        """How a longer prompt can be made to fit."""
        limit = longest(self.target.model)
        if self.target.max_length < limit:
            return f"shorten it, or raise max_length (--max-length), for this model up to {limit}"
        return "shorten it; this is the model's own context length"

    def cancel(self, name: str) -> None:
        """Give a request up; its last update comes with the next step. Unknown ones are over already."""
        for request in self._waiting:
            if request.id == name:
                self._waiting.remove(request)
                self._over.append(Update(name, result=Result(name, "", (), "cancelled")))
                return
        if name in self._running:
            self._over.append(self._retire(self._running[name], "cancelled"))

    def step(self) -> list[Update]:
        """One pass of the model for everybody: what it committed, and who is done."""
        began = time.perf_counter()
        try:
            self._admit()
            reading, deciding = self._plan()
            num_rows = sum(num for _, num in reading) + sum(self._num_unread(each) for each in deciding)
            context = sum(self.target.length(each.slot) for each in self._running.values())
            rooms = [self._room(each) for each in deciding]
            opened, drafts = self.guesser.draft(deciding, rooms, num_rows, context)
            survivals = self.guesser.survivals(opened, drafts)
            logits = self._read(reading, deciding, drafts)
            verdicts = self._judge(deciding, drafts, logits)
        except BaseException:  # out of memory, say, or interrupted: whoever tries again finds all as it was
            for each in self._running.values():
                self.target.truncate(each.slot, len(each.tokens) - 1)
            raise
        updates, self._over = self._over, []
        updates += [
            self._commit(each, draft, verdict, survival)
            for each, draft, verdict, survival in zip(deciding, drafts, verdicts, survivals, strict=True)
        ]
        seconds = time.perf_counter() - began
        self.seconds += seconds
        self.guesser.close(opened, [each.request.id for each in deciding], drafts, verdicts, seconds)
        return updates

    def stream(self) -> Iterator[Update]:
        """Step until nobody wants anything; requests may be added and cancelled on the way."""
        while self.num_unfinished or self._over:
            with log_compilation():
                updates = self.step()
            yield from updates

    def _admit(self) -> None:
        """Give waiting requests a slot, first come first served."""
        while self._waiting and self.target.cache.num_free:
            request = self._waiting.popleft()
            most = min(request.max_tokens, self.target.max_length - len(request.prompt))
            ends = frozenset() if request.ignore_end else self.ends
            ending = StopChecker(self.tokenizer, request.stop, ends, most)
            sequence = self._running[request.id] = RunningRequest(request, self.target.allocate(), ending)
            self.guesser.admit(sequence)

    def _plan(self) -> tuple[list[tuple[RunningRequest, int]], list[RunningRequest]]:
        """Who reads so many more tokens of a prompt in this pass, and who has read it all and decides."""
        reading, deciding, left = [], [], CHUNK
        for each in self._running.values():
            unread = self._num_unread(each)
            if unread == 1 or unread <= left:
                deciding.append(each)
            elif left:
                reading.append((each, left))
            left = max(0, left - (unread if unread > 1 else 0))
        return reading, deciding

    def _room(self, sequence: RunningRequest) -> int:
        """How many guesses a request may get: none that has no place, or that could not be said any more."""
        if sequence.ending.left == 1:
            return 0
        most = sequence.request.max_draft
        most = self.config.max_draft if most is None else min(most, self.config.max_draft)
        return min(most, self.target.max_length - len(sequence.tokens))

    def _read(
        self, reading: Many[tuple[RunningRequest, int]], deciding: Many[RunningRequest], drafts: Many[Draft]
    ) -> torch.Tensor:
        """The pass: pieces of prompts, and behind each last token the guesses."""
        texts = [
            *(InputRows(each.slot, self._unread(each)[:num], num_logits=0) for each, num in reading),
            *(
                _with_guesses(each.slot, self._unread(each), draft)
                for each, draft in zip(deciding, drafts, strict=True)
            ),
        ]
        logits = self.target.forward(texts) if texts else torch.empty(0, self.target.vocab_size)
        self.target.commit({each.slot: range(num) for each, num in reading})
        return logits

    def _unread(self, sequence: RunningRequest) -> list[int]:
        return sequence.tokens[self.target.length(sequence.slot) :]

    def _num_unread(self, sequence: RunningRequest) -> int:
        return len(sequence.tokens) - self.target.length(sequence.slot)

    def _judge(
        self, deciding: Many[RunningRequest], drafts: Many[Draft], logits: torch.Tensor
    ) -> list[Verdict | ForerunError]:
        """Which guesses stand; the cache keeps their rows and drops the others."""
        rounds = [
            each.verify_request(draft, self._lenience(each.request), self.guesser.can_block_verify(each))
            for each, draft in zip(deciding, drafts, strict=True)
        ]
        verdicts = verify_requests(rounds, logits, self.config.verifier)
        stays = {}
        for each, verdict in zip(deciding, verdicts, strict=True):
            unread = self._num_unread(each)
            nodes = verdict.accepted if isinstance(verdict, Verdict) else ()
            stays[each.slot] = [*range(unread), *(unread + node for node in nodes)]
        self.target.commit(stays)
        return verdicts

    def _lenience(self, request: Request) -> float:
        return self.config.lenience if request.lenience is None else request.lenience

    def _commit(
        self,
        sequence: RunningRequest,
        draft: Draft,
        verdict: Verdict | ForerunError,
        survival: tuple[float, ...],
    ) -> Update:
        """Say what stands, let the drafters hear it, and retire whoever is done."""
        if isinstance(verdict, ForerunError):
            return self._retire(sequence, "error", error=verdict)
        try:
            said = sequence.commit(draft, verdict)
        except Exception as error:  # tokenizers fall over tokens that nobody expected
            fault = InvalidRequest(f"what the model said cannot be spelled: {error}")
            return self._retire(sequence, "error", error=fault)
        self.guesser.observe(sequence, draft, verdict)
        reason = sequence.ending.reason
        shown = sequence.ending.show()
        update = Update(sequence.request.id, tuple(said), shown, draft, verdict, survival=survival)
        return update if reason is None else self._retire(sequence, reason, update)

    def _retire(
        self,
        sequence: RunningRequest,
        reason: FinishReason,
        update: Update | None = None,
        error: ForerunError | None = None,
    ) -> Update:
        """A request is over: its slot is free, and nobody remembers it."""
        del self._running[sequence.request.id]
        self.target.free(sequence.slot)
        self.guesser.forget(sequence.view)
        result = sequence.result(reason, error)
        update = update or Update(sequence.request.id)
        return replace(update, text=update.text + sequence.ending.show(), result=result)


def _with_guesses(slot: int, unread: Many[int], draft: Draft) -> InputRows:
    """What is unread of a text, and behind its last token a tree."""
    num = len(unread)
    parents = np.concatenate([np.arange(-1, num - 1), draft.parents + num])
    return InputRows(slot, np.concatenate([unread, draft.tokens]), parents, num_logits=len(draft) + 1)
