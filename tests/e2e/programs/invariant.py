"""Generates in invariant mode with and without speculation, alone and in one batch, then without one block.

Arguments: model, dtype, engine options (JSON). Log-probabilities are printed exactly.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from vllm import SamplingParams

from e2e.programs.engine_output import Engine, answer

NUM_TOKENS = 16
NUM_PROMPTS = 8


def prompts() -> list[Any]:
    """Prompts of 9 to 51 tokens that repeat themselves, so that there are drafts that are rejected, too."""
    draw = random.Random(1)
    phrases = [[draw.randrange(3, 1000) for _ in range(3 + 2 * at)] for at in range(NUM_PROMPTS)]
    return [{"prompt_token_ids": phrase * 3} for phrase in phrases]


def settings(at: int, max_draft: int, *, max_tokens: int, temperature: float) -> Any:
    """Greedy for even prompts, and sampled with a seed for odd ones."""
    sampling: dict[str, Any] = {"temperature": 0} if at % 2 == 0 else {"temperature": temperature, "seed": at}
    return SamplingParams(
        max_tokens=max_tokens,
        ignore_eos=True,
        logprobs=1,
        extra_args={"forerun_max_draft": max_draft},
        **sampling,
    )


def exact_outputs(send: Any, requests: list[tuple[Any, Any]], concurrency: int) -> list[Any]:
    """The tokens and their log-probabilities, for each prompt and its settings; `send` is vLLM's method."""
    found = []
    for first in range(0, len(requests), concurrency):
        prompts, params = zip(*requests[first : first + concurrency], strict=True)
        for output in (each.outputs[0] for each in send(list(prompts), list(params), use_tqdm=False)):
            steps = zip(output.token_ids, output.logprobs, strict=True)
            found.append([(token, position[token].logprob) for token, position in steps])
    return found


def generate(engine: Engine, *, max_draft: int, together: bool) -> list[Any]:
    """The outputs of all prompts."""
    requests = [
        (prompt, settings(at, max_draft, max_tokens=NUM_TOKENS, temperature=0.4))
        for at, prompt in enumerate(prompts())
    ]
    return exact_outputs(engine.llm.generate, requests, NUM_PROMPTS if together else 1)


def without_one_block(llm: Any) -> None:
    """Give one linear layer its kernel back, the widest: its result changes most with the number of rows."""
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    layer = model.model.layers[0].mlp.down_proj
    layer.cpu_linear = layer.cpu_linear.stock


def main(model: str, dtype: str, options: str) -> None:
    engine = Engine(
        model,
        dtype,
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
        "alone": generate(engine, max_draft=0, together=False),
        "together": generate(engine, max_draft=0, together=True),
    }
    before = engine.num_accepted
    outputs["alone, speculative"] = generate(engine, max_draft=8, together=False)
    outputs["together, speculative"] = generate(engine, max_draft=8, together=True)
    accepted = engine.num_accepted
    without_one_block(engine.llm)
    sabotaged = {
        "alone": generate(engine, max_draft=0, together=False),
        "together, speculative": generate(engine, max_draft=8, together=True),
    }
    answer({"outputs": outputs, "sabotaged": sabotaged, "accepted": [before, accepted]})


if __name__ == "__main__":
    main(*sys.argv[1:])
