"""Generates greedily, alone and in a batch, and counts draft tokens.

Arguments: model, transcript file, engine options (JSON).
"""

from __future__ import annotations

import json
import sys

from vllm import SamplingParams

from e2e.programs.engine_output import Engine, answer, read_prompts


def main(model: str, transcripts: str, options: str) -> None:
    engine = Engine(model, max_model_len=512, block_size=32, **json.loads(options))
    prompts = read_prompts(transcripts)
    greedy = SamplingParams(temperature=0, max_tokens=32)
    answer(
        {
            "alone": [one for prompt in prompts[:2] for one in engine.generate([prompt], greedy)],
            "greedy, all prompts": engine.generate(prompts, greedy),
            "accepted": engine.num_accepted,
            "drafted": engine.counter("spec_decode_num_draft_tokens"),
        }
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
