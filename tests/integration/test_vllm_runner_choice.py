"""The rules restated in `runner_choice` and `speculative_config` give vLLM's own answers."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make setup")

import vllm.config.vllm as vllm_config_module
import vllm.platforms
from vllm.config.speculative import MTPModelTypes, SpeculativeMethod
from vllm.config.vllm import VllmConfig
from vllm.triton_utils import importing
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from forerun.config import SpeculationConfig
from forerun.engines.vllm import runner_choice
from forerun.engines.vllm.launch import engine_arguments
from forerun.engines.vllm.runner_choice import Runner, choose_runner, is_cpu_platform, triton_fault
from forerun.engines.vllm.speculative_config import check_method, is_model_method, speculative_config_for
from forerun.engines.vllm.supported_config import check_supported
from forerun.errors import ConfigurationError, ForerunError, UnsupportedEngine

BUILDS = ("0.32.0", "0.32.0+cpu")
BACKENDS: list[dict[str, Any]] = [
    {name: active for name, active in zip(("nvidia", "amd", "cpu"), states, strict=True) if active != "none"}
    for states in product((True, False, None, "none"), (True, False, "none"), (True, "none"))
]
"""Backends of Triton with an active driver, an inactive one, or none."""


class Driver:
    """A driver of Triton."""

    def __init__(self, *, active: bool) -> None:
        self.active = active

    def is_active(self) -> bool:
        return self.active


def vllms_answer(monkeypatch: pytest.MonkeyPatch) -> bool:
    """`HAS_TRITON` of vLLM's module, executed again."""
    spec = spec_from_file_location("importing_again", importing.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return bool(module.HAS_TRITON)


@pytest.mark.parametrize("visible", [None, "", "0"])
@pytest.mark.parametrize("build", BUILDS)
def test_triton_is_used_where_vllm_uses_it(
    monkeypatch: pytest.MonkeyPatch, build: str, visible: str | None
) -> None:
    monkeypatch.setattr(runner_choice, "version", lambda _: build)
    monkeypatch.setattr(vllm.platforms, "vllm_version_matches_substr", lambda text: text in build)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    answers = set()
    for backends in BACKENDS:
        module: Any = ModuleType("triton.backends")
        module.backends = {
            name: SimpleNamespace(driver=None if active is None else Driver(active=active))
            for name, active in backends.items()
        }
        monkeypatch.setitem(sys.modules, "triton.backends", module)
        answer = vllms_answer(monkeypatch)
        assert (triton_fault() is None) == answer, backends
        answers.add(answer)
    assert answers == {True, False} or visible == ""


def test_this_machine_gets_vllms_answer() -> None:
    assert (triton_fault() is None) == importing.HAS_TRITON
    assert is_cpu_platform() == vllm.platforms.current_platform.is_cpu()


def config_of(speculative_config: dict[str, Any] | None, **parallel: Any) -> Any:
    """The part of vLLM's configuration that decides on the runner, with its own methods."""
    given = None
    if speculative_config is not None:
        defaults = {"parallel_drafting": False, "use_heterogeneous_vocab": False}
        given = SimpleNamespace(**{**defaults, **speculative_config})
    config = SimpleNamespace(
        attention_config=SimpleNamespace(hisparse_config=None),
        watermark_config=None,
        speculative_config=given,
        parallel_config=SimpleNamespace(
            distributed_executor_backend=None, pipeline_parallel_size=1, use_ubatching=False
        ),
    )
    config.parallel_config.__dict__.update(parallel)
    for name in ("_get_v2_model_runner_unsupported_features", "_get_dbo_unsupported_features"):
        setattr(config, name, getattr(VllmConfig, name).__get__(config))
    return config


def uses_v2(config: Any) -> bool:
    getter: Any = VllmConfig.__dict__["use_v2_model_runner"].fget
    return bool(getter(config))


@pytest.mark.parametrize("has_triton", [True, False])
@pytest.mark.parametrize("requested", [None, "0", "1"])
@pytest.mark.parametrize("flags", [[], ["--enable-dbo"], ["--ubatch-size", "2"], ["--ubatch-size", "1"]])
def test_the_runner_is_the_one_that_vllm_uses(
    monkeypatch: pytest.MonkeyPatch, has_triton: bool, requested: str | None, flags: list[str]
) -> None:
    if requested is None:
        monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    else:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", requested)
    monkeypatch.setattr(vllm_config_module, "HAS_TRITON", has_triton)
    monkeypatch.setattr(runner_choice, "triton_fault", lambda: None if has_triton else "no Triton")
    ubatching = flags not in ([], ["--ubatch-size", "1"])
    assert uses_v2(config_of(None, use_ubatching=ubatching)) == (choose_runner(flags).runner == "v2")


@pytest.mark.parametrize("draft_model", [None, "small"])
def test_the_arguments_for_a_runner_do_not_make_vllm_use_the_other_one(
    monkeypatch: pytest.MonkeyPatch, draft_model: str | None
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    monkeypatch.setattr(vllm_config_module, "HAS_TRITON", True)
    arguments = engine_arguments(SpeculationConfig(draft_model=draft_model), runner="v2")
    assert uses_v2(config_of(arguments["speculative_config"]))
    assert not uses_v2(config_of(engine_arguments(SpeculationConfig(), runner="v1")["speculative_config"]))


def test_every_method_of_vllm_is_accepted_or_refused_with_a_remedy() -> None:
    accepted = {"draft_model", "eagle", "eagle3", "dflash", *get_args(MTPModelTypes)}
    for method in get_args(SpeculativeMethod):
        assert is_model_method(method) == (method in accepted), method
        if method not in accepted:
            with pytest.raises(ConfigurationError, match=r"--drafter|vllm serve"):
                check_method(method, "v2")


def supported(runner: Runner, method: str, **forerun: Any) -> Any:
    """A configuration that `check_supported` reads."""
    return SimpleNamespace(
        use_v2_model_runner=runner == "v2",
        watermark_config=None,
        model_config=SimpleNamespace(enable_trace_replay=False),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        speculative_config=SimpleNamespace(method=method),
        additional_config={"forerun": forerun},
    )


@pytest.mark.parametrize(
    ("runner", "method"),
    [("v1", "custom_class"), ("v2", "ngram_gpu"), ("v1", "draft_model"), ("v1", "eagle3"), ("v2", "mtp")],
)
def test_engines_with_arguments_of_their_runner_start(runner: Runner, method: str) -> None:
    model = {"draft_model": "m"} if is_model_method(method) else {}
    check_supported(supported(runner, method, **model))


@pytest.mark.parametrize(
    ("config", "term"),
    [
        (supported("v1", "ngram_gpu"), "V1"),
        (supported("v2", "custom_class"), "V2"),
        (supported("v1", "dflash", draft_model="m"), "V2"),
        (supported("v2", "medusa"), "medusa"),
        (supported("v2", "eagle3"), "`model`"),
        (supported("v2", "ngram_gpu", lenience=0.5), "lenience"),
    ],
)
def test_engines_with_other_arguments_are_refused(config: Any, term: str) -> None:
    with pytest.raises(ForerunError, match=term):
        check_supported(config)


def test_watermarks_trace_replay_and_pipelines_are_refused() -> None:
    watermarked, replayed, piped = (supported("v2", "ngram_gpu") for _ in range(3))
    watermarked.watermark_config = SimpleNamespace()
    replayed.model_config.enable_trace_replay = True
    piped.parallel_config.pipeline_parallel_size = 2
    for config, term in (
        (watermarked, "--watermark-config"),
        (replayed, "--enable-trace-replay"),
        (piped, "2 pipeline stages.*--tensor-parallel-size"),
    ):
        with pytest.raises(UnsupportedEngine, match=term):
            check_supported(config)


def test_the_variables_of_vllm_are_read_as_vllm_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ.get("VLLM_TARGET_DEVICE", "") == "" or is_cpu_platform()
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    assert is_cpu_platform()


def test_vllm_captures_graphs_for_steps_without_drafts() -> None:
    """The schedule of lengths that V2 gets names 0, next to the maximum."""

    config = speculative_config_for(SpeculationConfig(), "v2")
    schedule, length = config["num_speculative_tokens_per_batch_size"], config["num_speculative_tokens"]
    assert set(build_dynamic_sd_schedule_lookup(schedule, 64, length)[1:]) == {0, length}
    assert build_dynamic_sd_schedule_lookup(schedule, 1, length)[1:] == [0]
