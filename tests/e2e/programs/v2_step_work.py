"""Counts the work of decode steps: rows, draft tokens, Triton kernels, torch operations.

Arguments: model, engine options (JSON), extra arguments of the requests (JSON).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped]

from e2e.programs.engine_output import answer
from v2_bench.engine import BenchEngine
from v2_bench.settings import PROMPTS, sampling_params

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.9, "seed": 1},
    {"temperature": 0.8, "presence_penalty": 0.5, "seed": 2},
    {"temperature": 1.0},
]


class CountedWork(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts torch operations, and launches of Triton kernels with their grids, while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.kernels: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations[str(func)] += 1
        return func(*args, **(kwargs or {}))


class StepRecorder:
    """Wraps the worker of an engine, and keeps the work of each step that only decodes."""

    def __init__(self, engine: BenchEngine) -> None:
        self.steps: list[dict[str, Any]] = []
        self.work = CountedWork()
        self.runner = engine.worker.model_runner
        run, recorder = InterpretedFunction.run, self

        def recording_run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            shape = "called" if callable(grid) else list(grid)
            recorder.work.kernels.append(f"{function.fn.__name__} {shape}")
            return run(function, *args, grid=grid, warmup=warmup, **kwargs)

        InterpretedFunction.run = recording_run
        self.execute_model = self.counted(engine.worker.execute_model)
        self.sample_tokens = self.counted(engine.worker.sample_tokens)
        engine.worker.execute_model = self.start_step
        engine.worker.sample_tokens = self.finish_step

    def counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.work:
                return method(*args, **kwargs)

        return run

    def start_step(self, scheduler_output: Any) -> Any:
        self.work = CountedWork()
        self.output = scheduler_output
        return self.execute_model(scheduler_output)

    def finish_step(self, grammar_output: Any) -> Any:
        batch = self.runner.execute_model_state.input_batch
        num_rows = len(batch.logits_indices)
        sampled = self.sample_tokens(grammar_output)
        if not self.output.scheduled_new_reqs and not self.output.finished_req_ids:
            self.steps.append(
                {
                    "rows": num_rows,
                    "draft_tokens": sum(map(len, self.output.scheduled_spec_decode_tokens.values())),
                    "kernels": self.work.kernels,
                    "operations": dict(self.work.operations),
                }
            )
        return sampled


def main(model: str, options: str, extra_args: str) -> None:
    engine = BenchEngine(model, json.loads(options))
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    params = [
        sampling_params({**settings, "extra_args": json.loads(extra_args)}, 12) for settings in SETTINGS
    ]
    engine.generate(prompts, params)
    recorder = StepRecorder(engine)
    outputs = engine.generate(prompts, params)
    answer({"steps": recorder.steps, "tokens": [one["tokens"] for one in outputs[:3]]})


if __name__ == "__main__":
    main(*sys.argv[1:])
