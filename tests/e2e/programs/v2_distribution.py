"""Samples three tokens of the same prompt many times on the bench, without a seed.

Arguments: model, engine options (JSON), request (JSON): `prompt`, `num_samples`, and `sabotage` (a name).
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

from vllm import SamplingParams

from e2e.programs.engine_output import answer
from v2_bench.engine import BenchEngine
from v2_bench.sabotage import SABOTAGES


def main(model: str, options: str, request: str) -> None:
    asked = json.loads(request)
    engine = BenchEngine(model, json.loads(options))
    prompts = [{"prompt_token_ids": asked["prompt"]}] * asked["num_samples"]
    params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True, detokenize=False)
    with SABOTAGES[asked["sabotage"]]() if "sabotage" in asked else nullcontext():
        tokens = [one["tokens"] for one in engine.generate(prompts, params)]
    answer({"tokens": tokens, "accepted": engine.num_accepted, "is_async": engine.is_async})


if __name__ == "__main__":
    main(*sys.argv[1:])
