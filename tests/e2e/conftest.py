"""Fixtures of several engine tests, and the distribution of these tests over workers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

FOLDER = Path(__file__).parent
DROPPED_LAYERS = range(14, 18)


def work_unit(nodeid: str) -> str:
    """The file or subfolder of a test; one worker runs all of it, with its engines and servers."""
    file = Path(nodeid.partition("::")[0])
    return str(file if file.parent.name == FOLDER.name else file.parent)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, keep the files of a subfolder together."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = work_unit
    return scheduler


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
