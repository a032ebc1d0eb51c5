"""An engine on the bench: comparable outputs, and the engine's counters."""

from __future__ import annotations

from collections import Counter
from typing import Any

from v2_bench.processes import SMALL
from v2_bench.tree_counts import TreeCounts

COMMON: dict[str, Any] = {"block_size": 32, "disable_log_stats": False, "max_logprobs": 8}
WITH_TOKENIZER: dict[str, Any] = {
    "logits_processors": ["v2_bench.logits_processor:BiasAfterToken"],
    "reasoning_config": {
        "reasoning_parser": "deepseek_r1",
        "reasoning_start_str": "<think>",
        "reasoning_end_str": "</think>",
    },
    "structured_outputs_config": {"enable_in_reasoning": True},
}
"""Engine options that the settings of the parity matrix need."""


class BenchEngine:
    """A vLLM engine on the V2 runner."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from vllm import LLM

        needs_tokenizer = not options.get("skip_tokenizer_init")
        self.llm = LLM(model, **{**SMALL, **COMMON, **(WITH_TOKENIZER if needs_tokenizer else {}), **options})
        config = self.llm.llm_engine.vllm_config
        assert config.use_v2_model_runner, "this engine does not use the V2 runner"
        self.is_async = config.scheduler_config.async_scheduling
        self.tree_counts: Counter[str] = Counter()
        scheduler = self.scheduler
        if getattr(scheduler, "trees", None) is not None:
            self.tree_counts = TreeCounts(scheduler).counts

    def generate(self, prompts: list[Any], params: Any) -> list[dict[str, Any]]:
        """The outputs of requests, in their order."""
        return [
            output_of(request, one)
            for request in self.llm.generate(prompts, params, use_tqdm=False)
            for one in request.outputs
        ]

    def counter(self, name: str) -> float:
        """The sum of one of vLLM's counters."""
        values = (metric.value for metric in self.llm.get_metrics() if metric.name == f"vllm:{name}")
        return float(sum(values))

    @property
    def scheduler(self) -> Any:
        """The scheduler, or None if the engine runs in another process."""
        core = getattr(self.llm.llm_engine.engine_core, "engine_core", None)
        return None if core is None else core.scheduler

    @property
    def worker(self) -> Any:
        """The worker, if the engine runs in this process."""
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker

    @property
    def num_accepted(self) -> float:
        """Draft tokens accepted since the start."""
        return self.counter("spec_decode_num_accepted_tokens")


def output_of(request: Any, output: Any) -> dict[str, Any]:
    """Everything of an output that must not depend on speculation."""
    return {
        "tokens": list(output.token_ids),
        "text": output.text,
        "finish": [output.finish_reason, output.stop_reason],
        "logprobs": [_logprobs(position) for position in output.logprobs or []],
        "prompt_logprobs": [_logprobs(position) for position in request.prompt_logprobs or []],
    }


def _logprobs(position: Any) -> list[tuple[int, int, float]]:
    return sorted((token, each.rank or 0, each.logprob) for token, each in (position or {}).items())
