"""Generates in invariant mode with and without speculation, alone and in one batch, then without one block.

Arguments: model, dtype, engine options (JSON). Log-probabilities are printed exactly.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from vllm import LLM, SamplingParams

from e2e.programs.engine_output import answer

NUM_TOKENS = 16
NUM_PROMPTS = 8


def prompts() -> list[Any]:
    """Prompts of 9 to 51 tokens that repeat themselves, so that there are drafts that are rejected, too."""
    draw = random.Random(1)
    phrases = [[draw.randrange(3, 1000) for _ in range(3 + 2 * at)] for at in range(NUM_PROMPTS)]
    return [{"prompt_token_ids": phrase * 3} for phrase in phrases]


def settings(at: int, max_draft: int) -> Any:
    """Greedy for even prompts, and sampled with a seed for odd ones."""
    sampling: dict[str, Any] = {"temperature": 0} if at % 2 == 0 else {"temperature": 0.4, "seed": at}
    return SamplingParams(
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
        logprobs=1,
        extra_args={"forerun_max_draft": max_draft},
        **sampling,
    )


def generate(llm: Any, *, max_draft: int, together: bool) -> list[Any]:
    """The tokens and their log-probabilities, for each prompt."""
    requests = [(prompt, settings(at, max_draft)) for at, prompt in enumerate(prompts())]
    batches = [requests] if together else [[each] for each in requests]
    found = []
    for batch in batches:
        outputs = llm.generate([each for each, _ in batch], [each for _, each in batch], use_tqdm=False)
        for output in (output.outputs[0] for output in outputs):
            steps = zip(output.token_ids, output.logprobs, strict=True)
            found.append([(token, position[token].logprob) for token, position in steps])
    return found


def without_one_block(llm: Any) -> None:
    """Give one linear layer its kernel back, the widest: its result changes most with the number of rows."""
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    layer = model.model.layers[0].mlp.down_proj
    layer.cpu_linear = layer.cpu_linear.stock


def num_accepted(llm: Any) -> float:
    name = "vllm:spec_decode_num_accepted_tokens"
    return float(sum(metric.value for metric in llm.get_metrics() if metric.name == name))


def main(model: str, dtype: str, options: str) -> None:
    llm = LLM(
        model,
        dtype=dtype,
        enforce_eager=True,
        disable_log_stats=False,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=64 << 20,
        max_model_len=128,
        max_num_seqs=NUM_PROMPTS,
        max_num_batched_tokens=40,  # prompts are chunked differently in a batch
        block_size=32,
        **json.loads(options),
    )
    outputs = {
        "alone": generate(llm, max_draft=0, together=False),
        "together": generate(llm, max_draft=0, together=True),
    }
    before = num_accepted(llm)
    outputs["alone, speculative"] = generate(llm, max_draft=8, together=False)
    outputs["together, speculative"] = generate(llm, max_draft=8, together=True)
    accepted = num_accepted(llm)
    without_one_block(llm)
    sabotaged = {
        "alone": generate(llm, max_draft=0, together=False),
        "together, speculative": generate(llm, max_draft=8, together=True),
    }
    answer({"outputs": outputs, "sabotaged": sabotaged, "accepted": [before, accepted]})


if __name__ == "__main__":
    main(*sys.argv[1:])
