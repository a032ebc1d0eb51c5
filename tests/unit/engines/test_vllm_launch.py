"""Conversion of the configuration to vLLM's arguments, and back."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from forerun.config import SpeculationConfig
from forerun.engines.vllm import launch
from forerun.engines.vllm.launch import (
    engine_arguments,
    launch_environment,
    log_deprecation,
    serve_flags,
    speculation_config,
    visible_cores,
)
from forerun.engines.vllm.runner_choice import Runner
from forerun.engines.vllm.speculative_config import MAX_CHAIN_LENGTH
from forerun.errors import ConfigurationError

RUNNERS = get_args(Runner)


def test_a_deprecated_value_is_logged_once_per_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="vllm.forerun")
    log_deprecation.cache_clear()
    config = SimpleNamespace(additional_config={"forerun": {"verifier": "follow"}})
    for _ in range(2):
        assert speculation_config(config).verifier == "match"
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("vllm.forerun", "WARNING")
    assert "'follow'" in record.message
    assert "'match'" in record.message


def value_of(flags: list[str], flag: str) -> Any:
    return json.loads(flags[flags.index(flag) + 1])


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "config",
    [
        SpeculationConfig(),
        SpeculationConfig(drafters=("ngram",), max_draft=3),
        SpeculationConfig(share_outputs=True, corpora=("a.fri",), draft_model="small", verifier="match"),
    ],
)
def test_the_configuration_survives_the_round_trip_through_vllms_arguments(
    config: SpeculationConfig, runner: Runner
) -> None:
    arguments = engine_arguments(config, {"other": 1}, runner=runner)
    assert speculation_config(SimpleNamespace(**arguments)) == config
    assert arguments["additional_config"]["other"] == 1
    json.dumps(arguments)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_draft_length_is_bounded(runner: Runner) -> None:
    def num_draft_tokens(max_draft: int) -> int:
        arguments = engine_arguments(SpeculationConfig(max_draft=max_draft), runner=runner)
        num: int = arguments["speculative_config"]["num_speculative_tokens"]
        return num

    assert [num_draft_tokens(max_draft) for max_draft in (0, 1, 8, 1000)] == [1, 1, 8, MAX_CHAIN_LENGTH]


def test_lookup_drafters_need_no_model_of_vllm() -> None:
    room = {"num_speculative_tokens": MAX_CHAIN_LENGTH}
    assert engine_arguments(SpeculationConfig(), runner="v1")["speculative_config"] == room | {
        "method": "custom_class",
        "model": "forerun.engines.vllm.NullProposer",
    }
    assert engine_arguments(SpeculationConfig(), runner="v2")["speculative_config"] == room | {
        "method": "ngram_gpu",
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 1,
        "num_speculative_tokens_per_batch_size": [[1, 1, 0], [2, 2, MAX_CHAIN_LENGTH]],
    }


def test_a_draft_model_is_vllms_own_and_samples() -> None:
    config = SpeculationConfig(draft_model="small", max_draft=4)
    drafted = {"method": "draft_model", "model": "small", "num_speculative_tokens": 4}
    sampled = {**drafted, "draft_sample_method": "probabilistic"}
    assert engine_arguments(config, runner="v1")["speculative_config"] == sampled
    assert engine_arguments(config, runner="v2")["speculative_config"] == drafted


def test_vllm_chooses_the_scheduling_mode_of_v2_unless_it_is_given() -> None:
    assert "async_scheduling" not in engine_arguments(SpeculationConfig(), runner="v2")
    for mode in (True, False):
        arguments = engine_arguments(SpeculationConfig(), runner="v2", asynchronous=mode)
        assert arguments["async_scheduling"] is mode
    assert engine_arguments(SpeculationConfig(), runner="v1")["async_scheduling"] is False
    with pytest.raises(ConfigurationError, match="V1"):
        engine_arguments(SpeculationConfig(), runner="v1", asynchronous=True)


def test_without_a_runner_the_arguments_are_for_the_one_that_vllm_will_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value, method in (("0", "custom_class"), ("1", "ngram_gpu")):
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", value)
        assert engine_arguments(SpeculationConfig())["speculative_config"]["method"] == method


def test_only_v1_verifies_in_another_way_than_by_matching() -> None:
    for changes in ({"lenience": 0.5}, {"verifier": "block"}, {"sampled": True}):
        config = SpeculationConfig(**changes)
        engine_arguments(config, runner="v1")
        with pytest.raises(ConfigurationError, match="V2"):
            engine_arguments(config, runner="v2")


def flags_for(given: list[str], runner: Runner = "v2", **config: Any) -> list[str]:
    return serve_flags("target", SpeculationConfig(**config), given, runner)


def test_flags_of_vllm_are_passed_on() -> None:
    flags = flags_for(["--dtype", "bfloat16", "--max_model_len=512"], "v1")
    assert flags[:4] == ["--dtype", "bfloat16", "--max-model-len", "512"]
    dotted = flags_for(["--hf_overrides.rope_theta=1", "--no-enable-log-requests"])
    assert dotted[:3] == ["--hf-overrides.rope_theta", "1", "--no-enable-log-requests"]
    assert value_of(flags, "--speculative-config")["num_speculative_tokens"] == MAX_CHAIN_LENGTH
    assert flags[flags.index("--per-request-spec-decode-metrics") + 1] == "summary"


def test_the_scheduling_mode_is_set_once() -> None:
    def modes(given: list[str], runner: Runner) -> list[str]:
        return [flag for flag in flags_for(given, runner) if "async" in flag]

    assert modes([], "v1") == modes(["--no-async-scheduling"], "v1") == ["--no-async-scheduling"]
    assert modes([], "v2") == []
    assert modes(["--no_async_scheduling", "--async-scheduling"], "v2") == ["--async-scheduling"]


def test_settings_of_the_user_are_kept_beside_ours() -> None:
    given = ["--additional-config", '{"mine": 1}', "--per-request-spec-decode-metrics=detailed"]
    for parts in (given, ["--additional-config.mine", "1", given[-1]]):
        flags = flags_for(parts, max_draft=2)
        assert value_of(flags, "--additional-config") == {"mine": 1, "forerun": {"max_draft": 2}}
        assert [flag for flag in flags if flag.startswith("--additional-config")] == ["--additional-config"]
        assert flags.count("--per-request-spec-decode-metrics") == 1


EAGLE: Any = {"method": "eagle3", "model": "head", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    "given",
    [
        ["--speculative-config", json.dumps(EAGLE)],
        [f"--speculative_config={json.dumps(EAGLE)}"],
        ["-sc", json.dumps(EAGLE)],
        ["-sc.method=eagle3", "-sc.model", "head", "--speculative-config.num_speculative_tokens", "3"],
        ["--spec-method", "eagle3", "--spec-model=head", "--spec-tokens", "3"],
        ["-sc", json.dumps({"method": "eagle3", "num-speculative-tokens": 3}), "--spec-model", "head"],
    ],
)
def test_a_speculator_of_vllm_is_passed_on_as_the_drafter_model(given: list[str]) -> None:
    flags = flags_for(["--dtype", "float32", *given, "--port", "1"])
    assert flags[:4] == ["--dtype", "float32", "--port", "1"]
    assert value_of(flags, "--speculative-config") == EAGLE
    assert not [flag for flag in flags if flag.startswith(("-sc", "--spec-", "--speculative-config."))]
    config = SpeculationConfig(**value_of(flags, "--additional-config")["forerun"])
    assert "model" in config.names


@pytest.mark.parametrize("method", ["draft_model", "eagle", "mtp", "deepseek_mtp", "dflash"])
def test_speculators_that_run_a_model_are_accepted_and_dflash_needs_v2(method: str) -> None:
    given = ["--spec-method", method, "--spec-model", "head", "--spec-tokens", "2"]
    assert value_of(flags_for(given), "--speculative-config")["method"] == method
    if method != "dflash":
        passed = value_of(flags_for(given, "v1"), "--speculative-config")
        assert passed["draft_sample_method"] == "probabilistic"
    else:
        with pytest.raises(ConfigurationError, match=rf"{method}.*V2"):
            flags_for(given, "v1")


def test_a_checkpoint_of_speculators_is_its_own_drafter(tmp_path: Path) -> None:
    config = {"speculators_config": {}, "speculators_model_type": "eagle3"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = serve_flags(str(tmp_path), SpeculationConfig(), [], "v2")
    assert value_of(flags, "--speculative-config") == {"method": "eagle3", "model": str(tmp_path)}
    assert value_of(flags, "--additional-config") == {"forerun": {"draft_model": str(tmp_path)}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    flags = serve_flags(str(tmp_path), SpeculationConfig(), [], "v2")
    assert value_of(flags, "--speculative-config")["method"] == "ngram_gpu"


@pytest.mark.parametrize(
    ("given", "term"),
    [
        (["--speculative-config", "{}"], "method or model"),
        (["--spec-tokens", "3"], "max_draft"),
        (["--spec-method", "ngram"], "--drafter"),
        (["--spec-method", "suffix"], "--drafter"),
        (["--spec-method", "custom_class", "--spec-model", "a.B"], "module:class"),
        (["--spec-method", "medusa"], "vllm serve"),
        (["--spec-method", "dspark"], "vllm serve"),
        (["-sc", json.dumps(EAGLE | {"rejection_sample_method": "synthetic"})], "rejection_sample_method"),
        (["-sc", json.dumps(EAGLE | {"enable_adaptive_verification": True})], "enable_adaptive"),
        (["-sc", json.dumps(EAGLE | {"parallel_drafting": True})], "parallel_drafting"),
        (["-sc", json.dumps(EAGLE), "--spec-tokens", "3"], "--spec-tokens"),
        (["--scheduler-cls", "x"], "--scheduler-cls"),
        (["--worker-cls=x"], "--worker-cls"),
        (["--additional-config", "{"], "not JSON"),
        (["--additional-config=[1]"], "must be a JSON object"),
        (["--additional-config"], "needs a value"),
    ],
)
def test_reserved_and_malformed_flags_raise(given: list[str], term: str) -> None:
    with pytest.raises(ConfigurationError, match=term):
        flags_for(given)


def test_one_of_two_draft_models_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"small.*head"):
        flags_for(["-sc", json.dumps(EAGLE)], draft_model="small")


def test_v1_refuses_what_only_v2_has() -> None:
    with pytest.raises(ConfigurationError, match="V1"):
        flags_for(["--async-scheduling"], "v1")
    drafted = {"method": "draft_model", "model": "small", "draft_sample_method": "greedy"}
    with pytest.raises(ConfigurationError, match="draft_sample_method"):
        flags_for(["-sc", json.dumps(drafted)], "v1")


def test_only_v1_is_requested_from_vllm() -> None:
    assert launch_environment("v1")["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert "VLLM_USE_V2_MODEL_RUNNER" not in launch_environment("v2")


@pytest.mark.parametrize("is_cpu", [True, False])
def test_invariant_mode_runs_eagerly(monkeypatch: pytest.MonkeyPatch, is_cpu: bool) -> None:
    monkeypatch.setattr(launch, "is_cpu_platform", lambda: is_cpu)
    flags = flags_for([], "v1", invariant=True)
    assert flags.count("--enforce-eager") == 1
    assert value_of(flags, "--additional-config") == {"forerun": {"invariant": True}}
    assert flags_for(["--enforce-eager"], "v1", invariant=True).count("--enforce-eager") == 1
    assert "--enforce-eager" not in flags_for([], "v1")
    assert ("VLLM_BATCH_INVARIANT" in launch_environment("v1", invariant=True)) == (not is_cpu)


def test_invariant_mode_on_a_gpu_uses_the_kernels_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "is_cpu_platform", lambda: False)
    assert launch_environment("v2", invariant=True)["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in launch_environment("v2")


def test_all_processes_use_the_cores_that_the_first_one_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores are part of the cache key of step costs, and a worker is bound to some of them."""
    monkeypatch.setenv("FORERUN_CORES", "")  # so that monkeypatch restores it
    monkeypatch.delenv("FORERUN_CORES")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    engine_arguments(SpeculationConfig(), runner="v1")
    assert visible_cores() == "4 3"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert visible_cores() == "4 3"
    monkeypatch.delenv("FORERUN_CORES")
    assert visible_cores() == "1 3"
