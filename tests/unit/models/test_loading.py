"""Where models are loaded onto."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra `local`")

from forerun import LLM
from forerun.engines.local import llm as local
from forerun.errors import ConfigurationError
from forerun.models.loading import device_of


def test_a_gpu_is_taken_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(None) == device_of("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["abacus", "cpu:x", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no device '{name}' here"):
        device_of(name)


def test_the_draft_model_is_put_where_the_target_is(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load(*wanted: Any) -> Any:
        asked.append(wanted)
        return copy.deepcopy(tiny_llama)

    monkeypatch.setattr(local, "load_model", load)
    LLM(tiny_llama, "model:small", max_batch=1, max_length=64)
    assert asked == [("small", torch.float32, tiny_llama.device)]


def test_a_model_that_is_handed_over_stays_where_it_is(tiny_llama: Any) -> None:
    with pytest.raises(ConfigurationError, match="stays where it is"):
        LLM(tiny_llama, "none", device="cpu", max_batch=1, max_length=64)
