"""Shared by the programs of this folder: generation with vLLM, its counters, and the printed answer."""

from __future__ import annotations

import json
import sys
from typing import Any


class Engine:
    """A vLLM engine, in float32 unless another dtype is given."""

    def __init__(self, model: str, dtype: str = "float32", **options: Any) -> None:
        from vllm import LLM

        self.llm = LLM(model=model, dtype=dtype, enforce_eager=True, disable_log_stats=False, **options)

    def generate(self, prompts: list[Any], params: Any, **options: Any) -> list[dict[str, Any]]:
        """The tokens of every output, with the log-probabilities that were requested."""
        outputs = self.llm.generate(prompts, params, use_tqdm=False, **options)
        return [_as_dict(one) for output in outputs for one in output.outputs]

    def counter(self, name: str) -> float:
        """The sum of one of vLLM's counters."""
        values = (metric.value for metric in self.llm.get_metrics() if metric.name == f"vllm:{name}")
        return float(sum(values))

    @property
    def num_accepted(self) -> float:
        """Draft tokens accepted since the start."""
        return self.counter("spec_decode_num_accepted_tokens")


def _as_dict(output: Any) -> dict[str, Any]:
    logprobs = [
        sorted((token, round(value.logprob, 3)) for token, value in position.items())
        for position in output.logprobs or []
    ]
    return {"tokens": list(output.token_ids), "logprobs": logprobs}


def read_prompts(transcripts: str) -> list[dict[str, Any]]:
    """The prompts of a transcript file, for vLLM."""
    with open(transcripts, encoding="utf-8") as lines:
        return [{"prompt_token_ids": json.loads(line)["prompt"]} for line in lines]


def answer(result: Any) -> None:
    """Print the result for the test that started the program."""
    sys.stdout.write(f"ANSWER {json.dumps(result)}\n")
