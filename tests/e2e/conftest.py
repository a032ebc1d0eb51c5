"""Fixtures of several engine tests, and the distribution of these tests over workers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

FOLDER = Path(__file__).parent
SHARES_UNIT = {"test_v2_heads.py": "test_v2_parity.py", "test_v2_trees.py": "test_v2_parity.py"}
"""Files that run in the unit of another, because they use the output of the same engine."""
LONGEST_FIRST = (
    "serve",
    "test_local_token_identity.py",
    "test_v2_parity.py",
    "test_vllm_token_identity.py",
    "test_notebook.py",
    "test_bench.py",
    "test_vllm_distribution.py",
    "test_selftest.py",
    "test_package.py",
    "test_vllm_parallel.py",
    "test_vllm_heads.py",
    "test_audit.py",
    "test_v2_distribution.py",
    "test_generate.py",
    "test_examples.py",
)
"""Units of a minute and more: workers end at about the same time if the short ones come last."""
DROPPED_LAYERS = range(14, 18)


def work_unit(nodeid: str) -> str:
    """The file or subfolder of a test; one worker runs all of it, with its engines and servers."""
    file = Path(nodeid.partition("::")[0])
    if file.parent.name != FOLDER.name:
        return str(file.parent)
    return str(file.with_name(SHARES_UNIT.get(file.name, file.name)))


def start_order(unit: str) -> int:
    """Units start in this order."""
    name = Path(unit).name
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


class EngineTestScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Assigns whole units, the longest first."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=start_order), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, schedule units."""
    return EngineTestScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def v2_models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny models of the bench for the V2 model runner."""
    from v2_bench.models import make_models

    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def stock_v2(v2_models: Any) -> Any:
    """The output of stock V2 without speculation, by request of `v2_bench.requests`, from one engine."""
    from v2_bench.parity import run_requests
    from v2_bench.requests import HEADS, PARITY

    parity, heads = run_requests(v2_models.target, {}, [PARITY, HEADS])
    return {"parity": parity, "heads": heads}


@pytest.fixture(scope="session")
def draft_model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 without four of its thirty layers, which agrees with it on about six tokens in ten."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16)
    layers = enumerate(model.model.layers)
    model.model.layers = torch.nn.ModuleList(layer for at, layer in layers if at not in DROPPED_LAYERS)
    model.config.num_hidden_layers = len(model.model.layers)
    folder = tmp_path_factory.mktemp("draft")
    model.save_pretrained(folder)
    for file in smollm2.glob("*token*"):
        shutil.copy(file, folder)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 26
    return folder
