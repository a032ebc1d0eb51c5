"""Samples three tokens of the same prompt many times, for each of several request options.

Arguments: model, number of samples, prompt (JSON), request options by name (JSON), engine options (JSON).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import SamplingParams

from e2e.programs.engine_output import Engine, answer


def main(model: str, num_samples: str, prompt: str, request_options: str, options: str) -> None:
    engine = Engine(
        model, max_model_len=128, max_num_seqs=256, skip_tokenizer_init=True, **json.loads(options)
    )
    prompts = [{"prompt_token_ids": json.loads(prompt)}] * int(num_samples)
    emitted: dict[str, Any] = {}
    for name, extra_args in json.loads(request_options).items():
        before = engine.num_accepted
        params = SamplingParams(
            temperature=1.0, max_tokens=3, ignore_eos=True, detokenize=False, extra_args=extra_args
        )
        tokens = [one["tokens"] for one in engine.generate(prompts, params)]
        emitted[name] = {"tokens": tokens, "accepted": engine.num_accepted - before}
    answer(emitted)


if __name__ == "__main__":
    main(*sys.argv[1:])
