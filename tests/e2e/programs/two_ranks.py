"""Generates with two tensor-parallel ranks, and records the tokens that each rank samples.

Arguments: model, request options by mode (JSON), engine options (JSON).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import SamplingParams

from e2e.programs.engine_output import Engine, answer

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "seed": 5},
    "free": {"temperature": 1.0},
}


def record(module: Any, _: Any, output: Any) -> None:
    """Append what a sampler returned."""
    module.recorded.append(output.sampled_token_ids.tolist())


def start_recording(worker: Any) -> None:
    """Hook into both samplers of a rank."""
    runner = worker.model_runner
    runner.recorded = []
    for module in (runner.sampler, runner.rejection_sampler) if runner.speculative_config else ():
        module.register_forward_hook(record)
        module.recorded = runner.recorded


def recorded(worker: Any) -> Any:
    """The tokens that a rank sampled."""
    return worker.model_runner.recorded


def main(model: str, modes: str, options: str) -> None:
    engine = Engine(
        model,
        max_model_len=256,
        max_num_seqs=8,
        skip_tokenizer_init=True,
        tensor_parallel_size=2,
        **json.loads(options),
    )
    engine.llm.collective_rpc(start_recording)
    prompts = [{"prompt_token_ids": [3, 1, 4, 1, 5, 9, number] * 6} for number in range(6)]
    emitted: dict[str, Any] = {}
    for mode, request_options in json.loads(modes).items():
        before, emitted[mode] = engine.num_accepted, {}
        for name, settings in SETTINGS.items():
            params = SamplingParams(
                max_tokens=40, ignore_eos=True, detokenize=False, extra_args=request_options, **settings
            )
            emitted[mode][name] = [one["tokens"] for one in engine.generate(prompts, params)]
        emitted[mode]["accepted"] = engine.num_accepted - before
    emitted["recorded"] = engine.llm.collective_rpc(recorded)
    answer(emitted)


if __name__ == "__main__":
    main(*sys.argv[1:])
