"""`forerun audit` finds that vLLM's own n-gram speculation changes the distribution."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.engines import run_audit
from forerun.servers.processes import started, vllm_command

pytestmark = pytest.mark.e2e

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
FLAGS = ["--served-model-name", "m", "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "64"]
FLAGS += ["--max-model-len", "1024"]


def test_stock_vllm_samples_from_another_distribution_at_temperature_1(smollm2: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    command = vllm_command(smollm2, *FLAGS, "--speculative-config", json.dumps(NGRAM))
    with started(command, tmp_path / "stock.log", environment={"VLLM_CPU_KVCACHE_SPACE": "1"}) as server:
        arguments = ("--candidate", server.url, "--reference", smollm2, "--settings", "temperature 1")
        code, report = run_audit("sampled", *arguments)
        assert code == 1
        assert report["verdict"] == "difference"
        assert report["e_value"] > 1e6
        assert report["num_samples"] <= 1000
