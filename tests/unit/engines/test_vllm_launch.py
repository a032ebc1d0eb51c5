"""From our configuration to vLLM's arguments, and back."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import CHAIN, cores, engine_arguments, serve_flags, settings_of
from forerun.errors import ConfigurationError


def value_of(flags: list[str], flag: str) -> Any:
    return json.loads(flags[flags.index(flag) + 1])


@pytest.mark.parametrize(
    "config",
    [
        SpeculationConfig(),
        SpeculationConfig(drafters=("ngram",), max_draft=3),
        SpeculationConfig(share_outputs=True, corpora=("a.fri",), draft_model="small", verifier="reject"),
    ],
)
def test_the_configuration_comes_through_as_it_is(config: SpeculationConfig) -> None:
    arguments = engine_arguments(config, {"other": 1})
    assert settings_of(SimpleNamespace(**arguments)) == config
    assert arguments["additional_config"]["other"] == 1
    json.dumps(arguments)


def test_how_far_is_bounded() -> None:
    def guesses(most: int) -> int:
        num: int = engine_arguments(SpeculationConfig(max_draft=most))["speculative_config"][
            "num_speculative_tokens"
        ]
        return num

    assert [guesses(most) for most in (0, 1, 8, 1000)] == [1, 1, 8, CHAIN]


def test_a_draft_model_is_vllms_own_and_draws() -> None:
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
    assert value_of(flags, "--speculative-config")["num_speculative_tokens"] == CHAIN
    assert flags[flags.index("--per-request-spec-decode-metrics") + 1] == "summary"


def test_what_the_user_says_of_the_same_things_stays() -> None:
    given = ["--additional-config", '{"mine": 1}', "--per-request-spec-decode-metrics=detailed"]
    flags = serve_flags(SpeculationConfig(max_draft=2), given)
    assert value_of(flags, "--additional-config") == {"mine": 1, "forerun": {"max_draft": 2}}
    assert flags.count("--additional-config") == 1
    assert flags.count("--per-request-spec-decode-metrics") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--speculative-config", "{}"], "use --draft-model"),
        (["--speculative_config={}"], "use --draft-model"),
        (["--scheduler-cls", "x"], "is set by forerun serve"),
        (["--worker-cls=x"], "is set by forerun serve"),
        (["-sc", "{}"], "is set by forerun serve"),
        (["--speculative-config.method", "ngram"], "is set by forerun serve"),
        (["--async-scheduling"], "last step's words"),
        (["--additional-config.mine", "1"], "without dots"),
        (["--additional-config", "{"], "not JSON"),
        (["--additional-config=[1]"], "must be a JSON object"),
        (["--additional-config"], "without its value"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        serve_flags(SpeculationConfig(), given)


def test_all_processes_take_the_first_ones_word_for_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """What steps cost is kept under it: a worker that is bound to one core leaves it where others look."""
    monkeypatch.setenv("FORERUN_CORES", "")  # so that it is put back
    monkeypatch.delenv("FORERUN_CORES")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    engine_arguments(SpeculationConfig())
    assert cores() == "4 3"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert cores() == "4 3"
    monkeypatch.delenv("FORERUN_CORES")
    assert cores() == "1 3"
