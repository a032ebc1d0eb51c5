"""Changes to vLLM's V2 model runner: draft tokens before a step, `match_target` after it.

A step without draft tokens runs vLLM's own code alone, as if the engine had no speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator, DraftModelSpeculator

from forerun.engines.vllm.logits_recorder import LogitsRecorder
from forerun.engines.vllm.speculative_config import LOOKUP_METHODS
from forerun.engines.vllm.step_plan import PLACEHOLDER, read_plan
from forerun.engines.vllm.step_report import StepReport, attach_report
from forerun.engines.vllm.sync_debug import count_synchronizations
from forerun.engines.vllm.v2.coupled_drafts import CoupledDrafts
from forerun.engines.vllm.v2.draft_timer import DraftTimer
from forerun.engines.vllm.v2.draft_tokens import write_draft_tokens
from forerun.engines.vllm.v2.verification import MatchTargetSampler
from forerun.engines.vllm.v2.worker_drafter import WorkerDrafter


class NullSpeculator(BaseSpeculator):  # type: ignore[misc]
    """Drafts nothing: draft tokens come from lookups. vLLM needs a speculator to verify draft tokens."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device, *_: Any) -> None:
        shape = (
            vllm_config.scheduler_config.max_num_seqs,
            vllm_config.speculative_config.num_speculative_tokens,
        )
        self.draft_tokens = torch.zeros(shape, dtype=torch.int64, device=device)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Needs no CUDA graph."""

    def capture(self) -> None:
        """Needs no CUDA graph."""

    def propose(self, input_batch: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Draft tokens without meaning; vLLM asks for them while it warms up."""
        return self.draft_tokens[: input_batch.num_reqs]


@contextmanager
def lookup_speculator(vllm_config: Any) -> Iterator[None]:
    """Within this block, runners for lookup drafters are created without vLLM's n-gram speculator.

    It would keep the tokens of all requests on the device.
    """
    if (
        vllm_config.speculative_config is None
        or vllm_config.speculative_config.method != LOOKUP_METHODS["v2"]
    ):
        yield
        return
    make_speculator, make_states = model_runner.init_speculator, model_runner.RequestState

    def make_sparse_states(*args: Any, **kwargs: Any) -> Any:
        return make_states(*args, **{**kwargs, "use_dense_all_token_ids": False})

    model_runner.init_speculator, model_runner.RequestState = NullSpeculator, make_sparse_states
    try:
        yield
    finally:
        model_runner.init_speculator, model_runner.RequestState = make_speculator, make_states


def install(runner: Any) -> None:
    """Install forerun's verification and drafting in a runner that has loaded its model."""
    if runner.speculative_config is None:
        return
    runner.rejection_sampler = MatchTargetSampler(runner.sampler, runner.speculative_config, runner.device)
    timer = DraftTimer(runner.device)
    if isinstance(runner.speculator, DraftModelSpeculator):
        CoupledDrafts(runner.speculator, runner.sampler, timer)
    is_async = runner.vllm_config.scheduler_config.async_scheduling
    SpeculativeSteps(runner, WorkerDrafter(runner.vllm_config) if is_async else None, timer)


class SpeculativeSteps:
    """Wraps the methods of a runner that run a step.

    With a `WorkerDrafter` (async scheduling) draft tokens are looked up here, right before the step that
    verifies them; otherwise the scheduler sends them. A draft model's tokens are already in place.
    """

    def __init__(self, runner: Any, drafter: WorkerDrafter | None, timer: DraftTimer) -> None:
        self.runner = runner
        self.drafter = drafter
        self.timer = timer
        self.recorder = LogitsRecorder(runner.output_copy_stream)
        self.speculator = runner.speculator
        self._prepare_inputs: Callable[..., Any] = runner.prepare_inputs
        self._sample: Callable[..., Any] = runner.sample
        self._sample_tokens: Callable[..., Any] = runner.sample_tokens
        self._take_draft_token_ids: Callable[[], Any] = runner.take_draft_token_ids
        self._number: int | None = None
        self._drafts: Mapping[str, list[int]] = {}
        runner.prepare_inputs = self.prepare_inputs
        runner.sample = self.sample
        runner.sample_tokens = self.sample_tokens
        runner.take_draft_token_ids = self.take_draft_token_ids

    def prepare_inputs(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Write the draft tokens of the step, then prepare its inputs as vLLM does."""
        plan = read_plan(scheduler_output)
        self._number = plan.number
        self.recorder.begin(plan.wants_logits)
        planned = scheduler_output.scheduled_spec_decode_tokens
        if planned:
            lengths = {name: len(tokens) for name, tokens in planned.items()}
            if self.drafter is None:
                self._drafts = {name: tokens for name, tokens in planned.items() if tokens[0] != PLACEHOLDER}
            else:
                self._drafts = self.drafter.draft(plan.drafting, lengths)
            pad_tokens = {} if self.drafter is None else {n: self.drafter.last_token(n) for n in self._drafts}
            write_draft_tokens(self.runner.req_states, self._drafts, lengths, pad_tokens)
        return self._prepare_inputs(scheduler_output, *args, **kwargs)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does; its speculator drafts only if the scheduler planned a draft length for it."""
        state = self.runner.execute_model_state
        if state is not None and state.num_spec_tokens_to_schedule > 0:
            output = self._sample_tokens(grammar_output)
        else:
            with self._without_speculator():
                output = self._sample_tokens(grammar_output)
        if output is not None:
            report = StepReport(self.timer.take(), self.recorder.take())
            attach_report(output.model_runner_output, report)
        if self.drafter is not None and self._number is not None:
            self.drafter.record_output(self._number, output)
        return output

    def sample(self, hidden_states: torch.Tensor, input_batch: Any, grammar_output: Any) -> Any:
        """Sample and verify as vLLM does, which needs the speculator in a step with draft tokens."""
        if not self.recorder.wanted:
            return self._verify(hidden_states, input_batch, grammar_output)
        num_rows = np.diff(input_batch.cu_num_logits_np).tolist()
        with self.recorder.recording(self.runner.model, input_batch.req_ids, num_rows):
            return self._verify(hidden_states, input_batch, grammar_output)

    def _verify(self, hidden_states: torch.Tensor, input_batch: Any, grammar_output: Any) -> Any:
        if input_batch.num_draft_tokens == 0:
            return self._sample(hidden_states, input_batch, grammar_output)
        hidden, self.runner.speculator = self.runner.speculator, self.speculator
        try:
            with count_synchronizations():
                return self._sample(hidden_states, input_batch, grammar_output)
        finally:
            self.runner.speculator = hidden

    def take_draft_token_ids(self) -> Any:
        """Draft tokens for the scheduler, which validates those of requests with a grammar.

        Without async scheduling the scheduler already has the looked-up ones.
        """
        from_model = None
        if isinstance(self.speculator, DraftModelSpeculator):
            from_model = self._take_draft_token_ids()
        if self.drafter is None:
            return from_model
        drafts = dict(zip(from_model.req_ids, from_model.draft_token_ids, strict=True)) if from_model else {}
        drafts |= self._drafts
        return DraftTokenIds(list(drafts), list(drafts.values()))

    @contextmanager
    def _without_speculator(self) -> Iterator[None]:
        """Within this block, the runner is one without speculation."""
        runner = self.runner
        num_speculative_steps = runner.num_speculative_steps
        runner.speculator, runner.num_speculative_steps = None, 0
        try:
            yield
        finally:
            runner.speculator, runner.num_speculative_steps = self.speculator, num_speculative_steps
