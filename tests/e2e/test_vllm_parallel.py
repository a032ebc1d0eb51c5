"""Two tensor-parallel ranks of a tiny model sample identical tokens, with and without a seed.

Each rank samples for itself and continues from its own tokens, so ranks that disagree would diverge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engines import make_llamas, run_engine

from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments

pytestmark = pytest.mark.e2e

RANKS = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
"""Functions may be sent to the ranks, and each rank is bound to its own core."""

PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams

SETTINGS = {
    "greedy": dict(temperature=0), "seeded": dict(temperature=0.9, seed=5), "free": dict(temperature=1.0)
}

def record(module, _, output):
    module.recorded.append(output.sampled_token_ids.tolist())

def start_recording(worker):
    runner = worker.model_runner
    runner.recorded = []
    for module in (runner.sampler, runner.rejection_sampler) if runner.speculative_config else ():
        module.register_forward_hook(record)
        module.recorded = runner.recorded

def recorded(worker):
    return worker.model_runner.recorded

def accepted(llm):
    name = "vllm:spec_decode_num_accepted_tokens"
    return sum(metric.value for metric in llm.get_metrics() if metric.name == name)

def main():
    model, modes, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=8,
              skip_tokenizer_init=True, disable_log_stats=False, tensor_parallel_size=2, **options)
    llm.collective_rpc(start_recording)
    prompts = [{"prompt_token_ids": [3, 1, 4, 1, 5, 9, number] * 6} for number in range(6)]
    emitted = {}
    for mode, request_options in modes.items():
        before, emitted[mode] = accepted(llm), {}
        for name, settings in SETTINGS.items():
            params = SamplingParams(max_tokens=24, ignore_eos=True, detokenize=False,
                                    extra_args=request_options, **settings)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            emitted[mode][name] = [list(output.outputs[0].token_ids) for output in outputs]
        emitted[mode]["accepted"] = accepted(llm) - before
    emitted["recorded"] = llm.collective_rpc(recorded)
    print("ANSWER", json.dumps(emitted))

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Random Llama models with four attention heads."""
    pytest.importorskip("transformers", reason="needs the extra `local`")
    return make_llamas(tmp_path_factory.mktemp("models"), vocab_size=64, heads=4)


@pytest.mark.usefixtures("all_cores")
def test_ranks_agree_on_every_token(models: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    program = tmp_path / "two_ranks.py"
    program.write_text(PROGRAM)

    def emitted_by(options: dict[str, Any], **modes: dict[str, str] | None) -> Any:
        return run_engine(program, models[0], json.dumps(modes), json.dumps(options), **RANKS)

    config = SpeculationConfig(draft_model=str(models[1]), adaptive=False, max_draft=8)
    looked_up, sampled = ({"forerun_drafter": name} for name in ("suffix", "model"))
    ours = emitted_by(engine_arguments(config), looked_up=looked_up, sampled=sampled)
    baseline = emitted_by({}, baseline=None)["baseline"]
    first, second = ours["recorded"]
    assert first == second
    assert len(first) > 60
    for mode in ("looked_up", "sampled"):
        assert ours[mode]["accepted"] > 20
        assert ours[mode]["greedy"] == baseline["greedy"]
        assert ours[mode]["seeded"] == baseline["seeded"]
