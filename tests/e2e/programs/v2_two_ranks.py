"""Generates with two tensor-parallel ranks on the bench, and records the inputs and samples of each rank.

Arguments: model, engine options (JSON). The inputs of a step contain its draft tokens.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import LLM, SamplingParams

from e2e.programs.engine_output import answer
from v2_bench.processes import SMALL

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "seed": 5},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.5, "top_k": 20, "seed": 6},
    "unseeded": {"temperature": 1.0},
}


def start_recording(worker: Any) -> None:
    """Wrap the methods of a rank that prepare inputs and sample."""
    runner = worker.model_runner
    runner.recorded = []
    prepare_inputs, sample = runner.prepare_inputs, runner.sample

    def recording_prepare_inputs(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        batch = prepare_inputs(scheduler_output, *args, **kwargs)
        lengths = {name: len(each) for name, each in scheduler_output.scheduled_spec_decode_tokens.items()}
        runner.recorded.append(
            ["inputs", batch.input_ids[: batch.num_tokens].tolist(), sum(lengths.values())]
        )
        return batch

    def recording_sample(*args: Any, **kwargs: Any) -> Any:
        sampled = sample(*args, **kwargs)
        runner.recorded.append(["sampled", sampled[0].sampled_token_ids.tolist(), sampled[1].tolist()])
        return sampled

    runner.prepare_inputs, runner.sample = recording_prepare_inputs, recording_sample


def recorded(worker: Any) -> Any:
    """The records of a rank."""
    return worker.model_runner.recorded


def main(model: str, options: str) -> None:
    engine = LLM(model, tensor_parallel_size=2, disable_log_stats=False, **SMALL, **json.loads(options))
    engine.collective_rpc(start_recording)
    prompts = [{"prompt_token_ids": [3, 1, 4, 1, 5, 9, number] * 6} for number in range(4)]
    emitted: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        params = SamplingParams(max_tokens=20, ignore_eos=True, detokenize=False, **settings)
        outputs = engine.generate(prompts, params, use_tqdm=False)
        emitted[name] = [list(output.outputs[0].token_ids) for output in outputs]
    metrics = {metric.name: metric.value for metric in engine.get_metrics() if hasattr(metric, "value")}
    emitted["accepted"] = metrics.get("vllm:spec_decode_num_accepted_tokens", 0)
    emitted["recorded"] = engine.collective_rpc(recorded)
    answer(emitted)


if __name__ == "__main__":
    main(*sys.argv[1:])
