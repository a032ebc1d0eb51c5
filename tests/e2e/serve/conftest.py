"""Two servers on loopback: stock vLLM without speculation, and forerun with drafters of all kinds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.serve.faults import FAULTS
from forerun.servers.processes import Server, forerun_command, started, vllm_command

ROOT = Path(__file__).parents[3]

FLAGS = ["--served-model-name", "m", "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16"]
FLAGS += ["--max-model-len", "1024", "--max-num-batched-tokens", "2048"]


@pytest.fixture(scope="package")
def servers(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """The baseline and forerun, started once for the folder."""
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    folder = tmp_path_factory.mktemp("servers")
    paths = os.pathsep.join([str(Path(__file__).parent), str(ROOT / "examples" / "serving")])
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": paths, "VLLM_LOGGING_LEVEL": "INFO"}
    ours = ["--share-outputs", "--drafter", "auto", "--drafter", "echo_drafter:EchoDrafter"]
    for fault in (*FAULTS, "Slow"):
        ours += ["--drafter", f"faults:{fault}"]
    stock = started(vllm_command(smollm2, *FLAGS), folder / "stock.log", environment=environment)
    mine = started(forerun_command(smollm2, *FLAGS, *ours), folder / "ours.log", environment=environment)
    with ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:  # start both at the same time
            baseline, forerun = pool.map(stack.enter_context, (stock, mine))
        yield baseline, forerun


@pytest.fixture
def baseline(servers: tuple[Server, Server]) -> Server:
    return servers[0]


@pytest.fixture
def forerun(servers: tuple[Server, Server]) -> Server:
    return servers[1]
