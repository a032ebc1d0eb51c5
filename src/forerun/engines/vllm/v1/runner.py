"""Changes to vLLM's V1 model runner: forerun's sampler, and what it reports to the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from typing import Any

import torch
from vllm.v1.worker import gpu_model_runner

from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.logits_recorder import LogitsRecorder
from forerun.engines.vllm.speculative_config import is_model_method
from forerun.engines.vllm.step_plan import read_plan
from forerun.engines.vllm.step_report import StepReport, attach_report
from forerun.engines.vllm.v1.gumbel_sampling import install_gumbel_argmax, samples_like_vllm
from forerun.engines.vllm.v1.sampler import SpeculativeSampler


def install_sampler(runner: Any) -> None:
    """Replace vLLM's rejection sampler if the runner speculates, and mask generators during prefill.

    vLLM samples for requests that are still in prefill, drops the token and rewinds the generator, which CPU
    generators do not support.
    """
    runner._sample = _mask_prefill_generators(runner, runner._sample)
    runner._bookkeeping_sync = _mask_prefill_generators(runner, runner._bookkeeping_sync)
    if runner.speculative_config is None:
        return
    samples_chains = samples_like_vllm(runner.sampler)
    if samples_chains:
        install_gumbel_argmax(runner.sampler)
    sampler = SpeculativeSampler(
        runner.sampler, runner, speculation_config(runner.vllm_config), samples_chains=samples_chains
    )
    runner.rejection_sampler = sampler
    runner._get_spec_decode_draft_probs = lambda _: None  # it has no rows for looked-up draft tokens
    recorder = LogitsRecorder()
    _record_logits(runner, recorder)
    _capture_plan(runner, sampler, recorder)
    if is_model_method(runner.speculative_config.method):
        _time_draft_model(runner)


def _mask_prefill_generators(runner: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a part of a step so that it does not see the generators of requests in prefill."""

    @wraps(step)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        prefilling = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        held = {at: batch.generators.pop(at) for at in prefilling if at in batch.generators}
        try:
            return step(*args, **kwargs)
        finally:
            batch.generators.update(held)

    return wrapped


def _capture_plan(runner: Any, sampler: SpeculativeSampler, recorder: LogitsRecorder) -> None:
    """Pass the scheduler's plan of every step to the sampler and to the recorder of logits."""
    execute = runner.execute_model

    @wraps(execute)
    def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        sampler.plan = read_plan(scheduler_output)
        recorder.begin(sampler.plan.wants_logits)
        return execute(scheduler_output, *args, **kwargs)

    runner.execute_model = execute_model


def _record_logits(runner: Any, recorder: LogitsRecorder) -> None:
    """Record the logits of a step before they are sampled, and report them with its output."""
    sample, sample_tokens = runner._sample, runner.sample_tokens

    @wraps(sample)
    def recording_sample(logits: Any, spec_decode_metadata: Any) -> Any:
        if recorder.wanted and logits is not None:
            names = runner.input_batch.req_ids
            drafted = (
                [0] * len(names) if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens
            )
            recorder.record(logits, names, [1 + num for num in drafted])
        return sample(logits, spec_decode_metadata)

    @wraps(sample_tokens)
    def reporting_sample_tokens(grammar_output: Any) -> Any:
        output = sample_tokens(grammar_output)
        if (report := recorder.take()) is not None:
            attach_report(output, StepReport(top_tokens=report))
        return output

    runner._sample, runner.sample_tokens = recording_sample, reporting_sample_tokens


def _time_draft_model(runner: Any) -> None:
    """Report the draft model's time to the scheduler, and skip it in steps that plan no draft tokens.

    vLLM runs it even then, to keep its KV cache complete; forerun's scheduler does not use it again for these
    requests.
    """
    propose, take = runner.propose_draft_token_ids, runner.take_draft_token_ids
    seconds: float | None = None  # of the last proposal, until it is taken

    @wraps(propose)
    def propose_draft_token_ids(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal seconds
        if scheduler_output.num_spec_tokens_to_schedule == 0:
            seconds = 0.0
            runner._draft_probs = runner._draft_prob_req_ids = None
            return torch.empty(runner.input_batch.num_reqs, 0, dtype=torch.int64, device=runner.device)
        began = time.perf_counter()
        drafts = propose(scheduler_output, *args, **kwargs)
        seconds = time.perf_counter() - began
        return drafts

    @wraps(take)
    def take_draft_token_ids() -> Any:
        nonlocal seconds
        drafts = take()
        elapsed, seconds = seconds, None
        if drafts is None or elapsed is None:
            return None  # close to max_model_len vLLM returns placeholders instead of drafting
        drafts.seconds = elapsed
        return drafts

    runner.propose_draft_token_ids = propose_draft_token_ids
    runner.take_draft_token_ids = take_draft_token_ids


@contextmanager
def keep_all_logits_processors() -> Iterator[None]:
    """Within this block, runners are created with all of vLLM's logits processors.

    With speculation vLLM leaves out min-p, logit biases and custom processors, because its rejection sampler
    cannot apply them. forerun's sampler runs vLLM's non-speculative sampler, which can.
    """
    build = gpu_model_runner.build_logitsprocs

    def build_all(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        unspeculative = copy(vllm_config)
        unspeculative.speculative_config = None
        return build(unspeculative, *args, **kwargs)

    gpu_model_runner.build_logitsprocs = build_all
    try:
        yield
    finally:
        gpu_model_runner.build_logitsprocs = build
