"""A vLLM engine that logs its steps, for `bench_load.py`, which sets vLLM's environment beforehand."""

from __future__ import annotations

import copy
import time
from functools import wraps
from itertools import chain, count, cycle
from pathlib import Path
from typing import Any, Final

import typer
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler

from forerun.bench.load import BASELINE, FORERUN, TimedStep
from forerun.bench.suites import read_suite
from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments
from forerun.engines.vllm.sync_scheduler import SyncScheduler
from forerun.models.loading import load_tokenizer

MAX_CONCURRENCY: Final = 16
"""Maximum concurrency."""

COUNTED, FILLER = "counted", "filler"
"""Prefixes of request ids."""

MAX_PROMPT_TOKENS: Final = 900
"""Maximum prompt tokens."""


class RecordingScheduler(SyncScheduler):
    """forerun's scheduler with a log of every step: start time, rows, decoding requests, counted requests,
    their output tokens, and forerun's own seconds.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.step_log: list[tuple[float, int, int, int, int, float]] = []
        self._began = self._ours = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Log the start of a step."""
        self._began, stock_before = time.perf_counter(), StockSchedulerTime.seconds
        output = super().schedule(*args, **kwargs)
        self._ours = time.perf_counter() - self._began - (StockSchedulerTime.seconds - stock_before)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Log the requests that decoded, the rows of the step, and the output tokens."""
        began, stock_before = time.perf_counter(), StockSchedulerTime.seconds
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._ours += time.perf_counter() - began - (StockSchedulerTime.seconds - stock_before)
        rows = scheduler_output.total_num_scheduled_tokens
        num_draft_tokens = sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
        requests = list(scheduler_output.num_scheduled_tokens)
        counted = sum(name.startswith(COUNTED) for name in requests)
        num_tokens = sum(
            len(each.new_token_ids)
            for one in outputs.values()
            for each in one.outputs
            if each.request_id.startswith(COUNTED)
        )
        decoding = len(requests) if rows - num_draft_tokens == len(requests) else 0
        self.step_log.append((self._began, rows, decoding, counted, num_tokens, self._ours))
        return outputs

    def full_steps(self, concurrency: int) -> list[TimedStep]:
        """Steps in which all requests decoded and none prefilled, timed to the start of the next step."""
        ends = [began for began, *_ in self.step_log[1:]]
        return [
            (rows, counted / concurrency, num_tokens, end - began, ours)
            for (began, rows, decoding, counted, num_tokens, ours), end in zip(
                self.step_log, ends, strict=False
            )
            if decoding == concurrency and counted
        ]


class StockSchedulerTime:
    """Total seconds spent in vLLM's own scheduler."""

    seconds = 0.0

    @classmethod
    def timed(cls, method: Any) -> Any:
        """Wrap one of its methods to add its time."""

        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                cls.seconds += time.perf_counter() - began

        return run


def time_stock_scheduler() -> None:
    """Measure the time that vLLM's own scheduler takes, in every engine of this process."""
    StockScheduler.schedule = StockSchedulerTime.timed(StockScheduler.schedule)
    StockScheduler.update_from_output = StockSchedulerTime.timed(StockScheduler.update_from_output)


class LoadEngine:
    """A vLLM engine with forerun, and the decoding modes to compare."""

    def __init__(
        self, model: Path, dtype: str, fixed: list[int], *, max_concurrency: int = MAX_CONCURRENCY
    ) -> None:
        self.tokenizer = load_tokenizer(str(model))
        arguments = engine_arguments(SpeculationConfig()) | {"scheduler_cls": RecordingScheduler}
        self.llm = LLM(
            model=str(model),
            dtype=dtype,
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=max_concurrency,
            enable_prefix_caching=True,  # modes share prompts: each is prefilled once
            block_size=32,
            **arguments,
        )
        self.scheduler: RecordingScheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        self.modes: dict[str, dict[str, int]] = {
            FORERUN: {},
            BASELINE: {"forerun_max_draft": 0},
            **{f"fixed {length}": {"forerun_adaptive": 0, "forerun_max_draft": length} for length in fixed},
        }
        controller = self.scheduler.speculator.controller
        self.controllers = {mode: copy.deepcopy(controller) for mode in self.modes}

    def run(
        self, mode: str, prompts: list[list[int]], params: SamplingParams, concurrency: int
    ) -> list[TimedStep]:
        """Run all prompts in one decoding mode; fillers repeat prompts until all are done."""
        speculator = self.scheduler.speculator
        speculator.controller = speculator.merger.controller = self.controllers[mode]
        engine, params = self.llm.llm_engine, params.clone()
        params.extra_args = self.modes[mode]
        counted = [f"{COUNTED} {number}" for number in range(len(prompts))]
        fillers = (f"{FILLER} {number}" for number in count())
        waiting, unfinished = zip(chain(counted, fillers), cycle(prompts), strict=False), set(counted)
        submitted: list[str] = []
        while unfinished:
            while engine.get_num_unfinished_requests() < concurrency:
                name, prompt = next(waiting)
                submitted.append(name)
                engine.add_request(name, {"prompt_token_ids": prompt}, params)
            unfinished -= {output.request_id for output in engine.step() if output.finished}
        engine.abort_request([name for name in submitted if name.startswith(FILLER)])
        while engine.has_unfinished_requests():
            engine.step()
        steps = self.scheduler.full_steps(concurrency)
        self.scheduler._record_finished()  # before its controller is replaced
        self.scheduler.step_log.clear()
        return steps

    def prompts(self, suite: str, category: str) -> list[list[int]]:
        """The prompts of a suite as token ids, without those above the length limit."""
        found = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": each.text}], add_generation_prompt=True, return_dict=False
            )
            for each in read_suite(suite)
            if each.category == category
        ]
        if not found:
            raise typer.BadParameter(f"{suite} has no prompts of the category {category}")
        return [prompt for prompt in found if len(prompt) <= MAX_PROMPT_TOKENS]
