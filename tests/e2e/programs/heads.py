"""Generates with several sampling settings, one request at a time and in a batch.

Arguments: model, sampling settings by name (JSON), engine options (JSON).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from e2e.programs.engine_output import Engine, answer
from v2_bench.settings import PROMPTS, sampling_params

NUM_TOKENS = 24


def main(model: str, settings: str, options: str) -> None:
    engine = Engine(
        model,
        max_model_len=256,
        max_num_seqs=8,
        block_size=32,
        skip_tokenizer_init=True,
        **json.loads(options),
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs: dict[str, Any] = {}
    for name, each in json.loads(settings).items():
        params = sampling_params(each, NUM_TOKENS)
        alone = [one for prompt in prompts for one in engine.generate([prompt], params)]
        outputs[name] = [one["tokens"] for one in [*alone, *engine.generate(prompts, params)]]
    drafted = engine.counter("spec_decode_num_draft_tokens")
    answer({"outputs": outputs, "drafted": drafted, "accepted": engine.num_accepted})


if __name__ == "__main__":
    main(*sys.argv[1:])
