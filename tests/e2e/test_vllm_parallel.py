"""Two ranks, each with half of a tiny model: they agree on every token, seeded and not.

Each rank samples for itself and goes on from what it said, so ranks that disagree go on from different texts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engines import ask, make_llamas

from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments

pytestmark = pytest.mark.e2e

RANKS = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
"""Functions may be sent to the ranks, and each has a core of its own."""

ASK = """
import json, sys
from vllm import LLM, SamplingParams

SETTINGS = {
    "greedy": dict(temperature=0), "seeded": dict(temperature=0.9, seed=5), "free": dict(temperature=1.0)
}

def hear(module, _, output):
    module.heard.append(output.sampled_token_ids.tolist())

def listen(worker):
    runner = worker.model_runner
    runner.heard = []
    for module in (runner.sampler, runner.rejection_sampler) if runner.speculative_config else ():
        module.register_forward_hook(hear)
        module.heard = runner.heard

def heard(worker):
    return worker.model_runner.heard

def accepted(llm):
    name = "vllm:spec_decode_num_accepted_tokens"
    return sum(metric.value for metric in llm.get_metrics() if metric.name == name)

def main():
    model, asked, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=8,
              skip_tokenizer_init=True, disable_log_stats=False, tensor_parallel_size=2, **options)
    llm.collective_rpc(listen)
    prompts = [{"prompt_token_ids": [3, 1, 4, 1, 5, 9, number] * 6} for number in range(6)]
    said = {}
    for who, wishes in asked.items():
        before, said[who] = accepted(llm), {}
        for name, settings in SETTINGS.items():
            params = SamplingParams(max_tokens=24, ignore_eos=True, detokenize=False, extra_args=wishes,
                                    **settings)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            said[who][name] = [list(output.outputs[0].token_ids) for output in outputs]
        said[who]["accepted"] = accepted(llm) - before
    said["heard"] = llm.collective_rpc(heard)
    print("ANSWER", json.dumps(said))

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Random Llamas of four heads."""
    pytest.importorskip("transformers", reason="needs the extra `local`")
    return make_llamas(tmp_path_factory.mktemp("models"), vocab_size=64, heads=4)


@pytest.mark.usefixtures("all_cores")
def test_ranks_agree_on_every_token(models: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    program = tmp_path / "two_ranks.py"
    program.write_text(ASK)

    def said_by(options: dict[str, Any], **asked: dict[str, str] | None) -> Any:
        return ask(program, models[0], json.dumps(asked), json.dumps(options), **RANKS)

    config = SpeculationConfig(draft_model=str(models[1]), adaptive=False, max_draft=8)
    looked_up, drawn = ({"forerun_drafter": name} for name in ("suffix", "model"))
    ours = said_by(engine_arguments(config), looked_up=looked_up, drawn=drawn)
    plain = said_by({}, plain=None)["plain"]
    first, second = ours["heard"]
    assert first == second
    assert len(first) > 60
    for who in ("looked_up", "drawn"):
        assert ours[who]["accepted"] > 20
        assert ours[who]["greedy"] == plain["greedy"]
        assert ours[who]["seeded"] == plain["seeded"]
