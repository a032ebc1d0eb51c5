"""Conversion of the configuration to vLLM's arguments, and back."""

from __future__ import annotations

import json
import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import (
    MAX_CHAIN_LENGTH,
    engine_arguments,
    log_deprecation,
    serve_flags,
    speculation_config,
    visible_cores,
)
from forerun.errors import ConfigurationError


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


@pytest.mark.parametrize(
    "config",
    [
        SpeculationConfig(),
        SpeculationConfig(drafters=("ngram",), max_draft=3),
        SpeculationConfig(share_outputs=True, corpora=("a.fri",), draft_model="small", verifier="rejection"),
    ],
)
def test_the_configuration_survives_the_round_trip_through_vllms_arguments(config: SpeculationConfig) -> None:
    arguments = engine_arguments(config, {"other": 1})
    assert speculation_config(SimpleNamespace(**arguments)) == config
    assert arguments["additional_config"]["other"] == 1
    json.dumps(arguments)


def test_the_draft_length_is_bounded() -> None:
    def num_draft_tokens(max_draft: int) -> int:
        num: int = engine_arguments(SpeculationConfig(max_draft=max_draft))["speculative_config"][
            "num_speculative_tokens"
        ]
        return num

    assert [num_draft_tokens(max_draft) for max_draft in (0, 1, 8, 1000)] == [1, 1, 8, MAX_CHAIN_LENGTH]


def test_a_draft_model_is_vllms_own_and_samples() -> None:
    config = engine_arguments(SpeculationConfig(draft_model="small"))["speculative_config"]
    assert config["method"] == "draft_model"
    assert config["model"] == "small"
    assert config["draft_sample_method"] == "probabilistic"


def test_flags_of_vllm_are_passed_on() -> None:
    flags = serve_flags(SpeculationConfig(), ["--dtype", "bfloat16", "--max_model_len=512"])
    assert flags[:4] == ["--dtype", "bfloat16", "--max-model-len", "512"]
    dotted = serve_flags(SpeculationConfig(), ["--hf_overrides.rope_theta=1", "--no-enable-log-requests"])
    assert dotted[:3] == ["--hf-overrides.rope_theta", "1", "--no-enable-log-requests"]
    assert "--no-async-scheduling" in flags
    assert value_of(flags, "--speculative-config")["num_speculative_tokens"] == MAX_CHAIN_LENGTH
    assert flags[flags.index("--per-request-spec-decode-metrics") + 1] == "summary"


def test_settings_of_the_user_are_kept_beside_ours() -> None:
    given = ["--additional-config", '{"mine": 1}', "--per-request-spec-decode-metrics=detailed"]
    flags = serve_flags(SpeculationConfig(max_draft=2), given)
    assert value_of(flags, "--additional-config") == {"mine": 1, "forerun": {"max_draft": 2}}
    assert flags.count("--additional-config") == 1
    assert flags.count("--per-request-spec-decode-metrics") == 1


@pytest.mark.parametrize(
    ("given", "term"),
    [
        (["--speculative-config", "{}"], "--draft-model"),
        (["--speculative_config={}"], "--draft-model"),
        (["--scheduler-cls", "x"], "--scheduler-cls"),
        (["--worker-cls=x"], "--worker-cls"),
        (["-sc", "{}"], "--draft-model"),
        (["--speculative-config.method", "ngram"], "--draft-model"),
        (["--async-scheduling"], "--async-scheduling"),
        (["--additional-config.mine", "1"], "one JSON object"),
        (["--additional-config", "{"], "not JSON"),
        (["--additional-config=[1]"], "must be a JSON object"),
        (["--additional-config"], "needs a value"),
    ],
)
def test_reserved_and_malformed_flags_raise(given: list[str], term: str) -> None:
    with pytest.raises(ConfigurationError, match=term):
        serve_flags(SpeculationConfig(), given)


def test_all_processes_use_the_cores_that_the_first_one_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores are part of the cache key of step costs, and a worker is bound to some of them."""
    monkeypatch.setenv("FORERUN_CORES", "")  # so that monkeypatch restores it
    monkeypatch.delenv("FORERUN_CORES")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    engine_arguments(SpeculationConfig())
    assert visible_cores() == "4 3"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert visible_cores() == "4 3"
    monkeypatch.delenv("FORERUN_CORES")
    assert visible_cores() == "1 3"
