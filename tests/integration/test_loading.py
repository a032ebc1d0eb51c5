"""Devices and dtypes of loaded models."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra `local`")

from forerun import LLM
from forerun.engines.local import draft_models
from forerun.errors import ConfigurationError
from forerun.models.loading import has_bfloat16_instructions, load_model, resolve_device


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

    monkeypatch.setattr(draft_models, "load_model", load)
    LLM(tiny_llama, "model:small", max_batch=1, max_length=64)
    assert calls == [("small", torch.float32, tiny_llama.device)]


def test_a_device_for_a_model_object_raises(tiny_llama: Any) -> None:
    with pytest.raises(ConfigurationError, match="device"):
        LLM(tiny_llama, "none", device="cpu", max_batch=1, max_length=64)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float32])
def test_a_dtype_for_a_model_object_raises(tiny_llama: Any, dtype: str | torch.dtype) -> None:
    with pytest.raises(ConfigurationError, match="dtype"):
        LLM(tiny_llama, "none", dtype=dtype, max_batch=1, max_length=64)


@pytest.fixture
def capabilities(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The instruction sets that torch detects, to be filled by a test."""
    found: dict[str, Any] = {
        "architecture": "x86_64",
        "avx512_f": True,
        "avx512_vnni": True,
        "amx_bf16": False,
    }
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    return found


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float32], ids=str)
def checkpoint(request: pytest.FixtureRequest, tiny_llama: Any, tmp_path: Path) -> tuple[Path, torch.dtype]:
    """A checkpoint and its dtype."""
    copy.deepcopy(tiny_llama).to(request.param).save_pretrained(tmp_path)
    return tmp_path, request.param


@pytest.mark.parametrize("name", ["amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16", "sve_bf16"])
def test_bfloat16_instructions_are_found_on_x86_and_arm(name: str, capabilities: dict[str, Any]) -> None:
    assert not has_bfloat16_instructions()
    capabilities[name] = True
    assert has_bfloat16_instructions()


def test_a_torch_that_lists_no_instructions_counts_as_a_cpu_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not has_bfloat16_instructions()


@pytest.mark.parametrize("has_bfloat16", [False, True])
def test_a_bfloat16_checkpoint_is_loaded_in_float32_on_a_cpu_without_bfloat16(
    has_bfloat16: bool,
    checkpoint: tuple[Path, torch.dtype],
    capabilities: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, stored = checkpoint
    capabilities["amx_bf16"] = has_bfloat16
    is_replaced = stored == torch.bfloat16 and not has_bfloat16
    with caplog.at_level(logging.INFO, "forerun.models.loading"):
        assert load_model(folder).dtype == (torch.float32 if is_replaced else stored)
    lines = [each.getMessage() for each in caplog.records if each.name == "forerun.models.loading"]
    assert len(lines) == is_replaced
    assert all("bfloat16" in line and "float32" in line for line in lines)


@pytest.mark.usefixtures("capabilities")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_given_dtype_is_obeyed_without_a_line(
    dtype: torch.dtype, checkpoint: tuple[Path, torch.dtype], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "forerun.models.loading"):
        assert load_model(checkpoint[0], dtype).dtype == dtype
    assert [each for each in caplog.records if each.name == "forerun.models.loading"] == []
