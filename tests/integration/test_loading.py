"""Devices and dtypes of loaded models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra `local`")

from forerun import LLM
from forerun.engines.local import llm as local
from forerun.errors import ConfigurationError
from forerun.models.loading import resolve_device


def test_the_default_device_is_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(None) == resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["abacus", "cpu:x", "cuda:99"])
def test_an_unavailable_device_raises(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}'.*cpu"):
        resolve_device(name)


def test_the_draft_model_is_loaded_onto_the_device_of_the_target(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def load(*arguments: Any) -> Any:
        calls.append(arguments)
        return copy.deepcopy(tiny_llama)

    monkeypatch.setattr(local, "load_model", load)
    LLM(tiny_llama, "model:small", max_batch=1, max_length=64)
    assert calls == [("small", torch.float32, tiny_llama.device)]


def test_a_device_for_a_model_object_raises(tiny_llama: Any) -> None:
    with pytest.raises(ConfigurationError, match="device"):
        LLM(tiny_llama, "none", device="cpu", max_batch=1, max_length=64)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float32])
def test_a_dtype_for_a_model_object_raises(tiny_llama: Any, dtype: str | torch.dtype) -> None:
    with pytest.raises(ConfigurationError, match="dtype"):
        LLM(tiny_llama, "none", dtype=dtype, max_batch=1, max_length=64)
