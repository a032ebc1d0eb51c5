"""Drafting in the worker, for async scheduling: draft tokens are looked up right after sampling.

The scheduler plans the draft lengths of a step while the step before it runs. Here that step has been
sampled, so its tokens are known: they are read from the copy that vLLM makes for the scheduler anyway. Drafts
are a pure function of tokens, planned lengths and configuration, so tensor-parallel ranks agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from forerun.engines.guarded_drafter import DrafterTotals
from forerun.engines.top_token_rows import chain_top_tokens, learning_order
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.speculation import make_chain_drafter
from forerun.engines.vllm.static_table import use_static_table
from forerun.engines.vllm.step_plan import DraftingPlan, RequestUpdate
from forerun.engines.vllm.step_report import read_report
from forerun.types import RequestView

MAX_UNLEARNED: Final = 64
"""Steps whose logits are kept until the next lookup."""

Chains: TypeAlias = dict[str, tuple[list[int], list[int]]]
"""The last two tokens of each request, and its draft."""


class WorkerDrafter:
    """Mirrors the tokens of drafted requests and looks up their drafts."""

    def __init__(self, vllm_config: Any) -> None:
        self.chain_drafter = make_chain_drafter(vllm_config, DrafterTotals())
        self.share_outputs = speculation_config(vllm_config).share_outputs
        self._outputs: deque[tuple[int, Any]] = deque(maxlen=vllm_config.max_concurrent_batches)
        self._chains: Chains = {}
        self._unlearned: deque[tuple[int, Any, Chains]] = deque(maxlen=MAX_UNLEARNED)
        self._requests: dict[str, MirroredRequest] = {}

    def record_output(self, number: int, output: Any) -> None:
        """Keep the output of a step until the scheduler has processed it, its logits until drafters learn."""
        self._outputs.append((number, output))
        if self._chains:
            self._unlearned.append((number, output, self._chains))
            self._chains = {}

    def draft(self, plan: DraftingPlan | None, lengths: Mapping[str, int]) -> dict[str, list[int]]:
        """The draft tokens of the requests in the plan, at most `lengths` of each."""
        self._chains = {}
        if plan is None:
            return {}
        self._learn_logits(plan.last_processed)
        self._update(plan)
        if plan.static_table is not None:
            use_static_table(self.chain_drafter.drafters, plan.static_table)
        in_flight = self._in_flight(plan)
        names = [name for name in plan.requests if name in lengths]
        chains = self._propose([name for name in names if name not in in_flight], lengths)
        self._learn_logits(None)
        chains |= self._propose([name for name in names if name in in_flight], lengths)
        self._chains = {name: (self._requests[name].tokens[-2:], chain) for name, chain in chains.items()}
        return chains

    def _propose(self, names: Sequence[str], lengths: Mapping[str, int]) -> dict[str, list[int]]:
        """The draft tokens of these requests."""
        requests = [self._requests[name] for name in names]
        drafts = self.chain_drafter.propose(
            [request.view(name) for name, request in zip(names, requests, strict=True)],
            [lengths[name] for name in names],
            [request.drafters for request in requests],
        )
        return {name: draft.tokens.tolist() for name, draft in zip(names, drafts, strict=True)}

    def _in_flight(self, plan: DraftingPlan) -> set[str]:
        """The requests of steps that the scheduler had not processed when it made the plan."""
        recent = (output for number, output in self._outputs if number > plan.last_processed)
        return {name for output in recent for name in output.model_runner_output.req_ids}

    def last_token(self, name: str) -> int:
        """The last token of a request, with which the rows of a draft that is too short are filled."""
        return self._requests[name].tokens[-1]

    def _learn_logits(self, last: int | None) -> None:
        """Report the rows of steps up to a number, or of all steps, to the drafters.

        The scheduler reports them in the same order. When it looks up the draft of a request that is in no
        step in flight, it does not know the rows of steps in flight yet. Rows of ended requests are ignored.
        """
        while self._unlearned and (last is None or self._unlearned[0][0] <= last):
            _, output, chains = self._unlearned.popleft()
            output.copy_event.synchronize()
            report = read_report(output.model_runner_output).top_tokens
            rows = {} if report is None else report.by_request()
            num_sampled = dict(zip(*_sampled_counts(output), strict=True))
            for name in sorted(rows.keys() & chains.keys()):
                text, chain = chains[name]
                found = chain_top_tokens(text, chain, rows[name])
                accepted = range(min(num_sampled[name] - 1, len(chain)))
                self.chain_drafter.learn_logits(name, learning_order(found, accepted))

    def _update(self, plan: DraftingPlan) -> None:
        """Bring the mirrored tokens up to date: by the scheduler's plan, then by the steps in flight."""
        for name, update in plan.finished.items():
            self._update_request(name, update)
            request = self._requests.pop(name)
            view = request.view(name) if self.share_outputs else None
            self.chain_drafter.forget(name, view, request.drafters)
        for name, update in plan.requests.items():
            self._update_request(name, update)
        for number, output in self._outputs:
            if number > plan.last_processed:
                self._append_output(output, plan)

    def _update_request(self, name: str, update: RequestUpdate) -> None:
        request = self._requests.get(name)
        if request is None or update.start == 0:
            request = self._requests[name] = MirroredRequest(update)
            self.chain_drafter.forget(name)
        elif not request.update(update.start, update.tokens):
            self.chain_drafter.forget(name)  # tokens were replaced: its lookup index starts anew

    def _append_output(self, output: Any, plan: DraftingPlan) -> None:
        """Append the sampled tokens of a step in flight, once they have been copied to the host."""
        output.copy_event.synchronize()
        for row, (name, num_sampled) in enumerate(zip(*_sampled_counts(output), strict=True)):
            if name in plan.requests:
                tokens = output.sampled_token_ids[row, :num_sampled].tolist()
                self._requests[name].tokens.extend(tokens)


def _sampled_counts(output: Any) -> tuple[list[str], list[int]]:
    """The requests of a step, and their numbers of output tokens; the copy to the host must be done."""
    return output.model_runner_output.req_ids, output.num_sampled_tokens_np.tolist()


class MirroredRequest:
    """The tokens of a request as far as this worker knows them, and how to draft for it."""

    def __init__(self, update: RequestUpdate) -> None:
        self.tokens = list(update.tokens)
        self.num_prompt = update.num_prompt
        self.salt = update.salt
        self.drafters = update.drafters
        self.prediction = update.prediction

    def update(self, start: int, tokens: Sequence[int]) -> bool:
        """Set the tokens from `start` on to those of the scheduler; returns whether the known ones agree."""
        known = self.tokens[start:]
        self.tokens[start:] = tokens
        return known[: len(tokens)] == list(tokens[: len(known)])

    def view(self, name: str) -> RequestView:
        """The request as drafters see it."""
        return RequestView(
            name, self.tokens, num_prompt=self.num_prompt, salt=self.salt, prediction=self.prediction
        )
