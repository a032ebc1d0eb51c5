"""EAGLE-3 and MTP heads through `forerun serve` on the bench: identical output, and counters that add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.serve.completions import counts
from forerun.servers.processes import Server, forerun_command, started
from v2_bench.models import Models
from v2_bench.parity import run_parity
from v2_bench.processes import bench_environment
from v2_bench.requests import HEADS
from v2_bench.settings import PROMPTS, SETTINGS

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytest.importorskip("transformers", reason="needs the extra `local`")

pytestmark = pytest.mark.e2e

NAMES = HEADS["settings"]
FLAGS = ["--served-model-name", "m", "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8"]
FLAGS += ["--max-model-len", "256", "--kv-cache-memory-bytes", str(64 << 20), "--block-size", "32"]


def tokens_of(result: Any) -> list[list[int]]:
    """The output of the parity program for `HEADS`, setting by setting."""
    return [one["tokens"] for name in NAMES for one in result["cells"][f"{name}, batched"]["outputs"]]


def complete(server: Server, prompt: list[int], settings: dict[str, Any]) -> dict[str, Any]:
    """One completion, with every draft token verified."""
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": HEADS["num_tokens"],
        "ignore_eos": True,
        "return_token_ids": True,
        "vllm_xargs": {"forerun_adaptive": 0, "forerun_drafter": "model"},
        **settings,
    }
    response = httpx.post(f"{server.v1}/completions", json=body, timeout=120)
    response.raise_for_status()
    answer = response.json()
    metrics = answer["metrics"]["speculative_decoding"]
    return {
        "tokens": answer["choices"][0]["token_ids"],
        "drafted": metrics["num_draft_tokens"],
        "accepted": metrics["num_accepted_draft_tokens"],
    }


@pytest.mark.parametrize("head", ["eagle3", pytest.param("mtp", marks=pytest.mark.full)])
def test_a_head_leaves_the_output_unchanged(
    request: pytest.FixtureRequest, v2_models: Models, tmp_path: Path, head: str
) -> None:
    """The EAGLE-3 head is a checkpoint of the `speculators` library."""
    model, config = v2_models.mtp, {"method": "mtp", "num_speculative_tokens": 2}
    if head == "eagle3":
        folder = str(v2_models.eagle3_speculators)
        model, config = v2_models.target, {"method": "eagle3", "model": folder, "num_speculative_tokens": 3}
    command = forerun_command(model, *FLAGS, "--speculative-config", json.dumps(config))
    environment = {**bench_environment(), "VLLM_LOGGING_LEVEL": "INFO"}
    with started(command, tmp_path / "server.log", environment=environment) as server:
        prompts = PROMPTS[: HEADS["num_prompts"]]
        found = [complete(server, prompt, SETTINGS[name]) for name in NAMES for prompt in prompts]
        counted = counts(server)
    if head == "eagle3":
        stock = request.getfixturevalue("stock_v2")["heads"]
    else:
        stock = run_parity(model, {}, **HEADS)
    assert [one["tokens"] for one in found] == tokens_of(stock)
    drafted, accepted = (sum(one[key] for one in found) for key in ("drafted", "accepted"))
    assert 0 < accepted < drafted
    assert counted["vllm:spec_decode_num_draft_tokens_total"] == drafted
    assert counted["vllm:spec_decode_num_accepted_tokens_total"] == accepted
    assert counted["forerun:draft_tokens_total model"] == drafted
    assert counted["forerun:accepted_tokens_total model"] == accepted
