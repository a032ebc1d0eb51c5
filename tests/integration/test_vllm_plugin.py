"""The plug-in changes vLLM's front end only where forerun's scheduler runs."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make setup")

import uvicorn
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from forerun.engines.vllm import contract, plugin
from forerun.engines.vllm.launch import SCHEDULER
from forerun.engines.vllm.shutdown import CLOSE_SECONDS
from forerun.errors import VocabularyMismatch


def vllm_config(scheduler: str = SCHEDULER, *, is_v2: bool = False, is_async: bool = False) -> Any:
    """The part of vLLM's configuration that the front end reads."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler, async_scheduling=is_async),
        model_config=SimpleNamespace(dtype="float32"),
        speculative_config=None,
        additional_config={},
        instance_id="i",
        use_v2_model_runner=is_v2,
    )


@pytest.fixture
def make_processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes input processors of a configuration, without metrics and contract."""
    monkeypatch.setattr(uvicorn.Config, "__init__", uvicorn.Config.__init__)
    monkeypatch.setattr(plugin, "_export_metrics", lambda _: None)
    monkeypatch.setattr(contract, "check_config", lambda _: None)

    def make(config: Any) -> Any:
        processor: Any = SimpleNamespace(speculative_config="speculative", model_config=None, tokenizer=None)
        plugin._patch_init(lambda *_: None)(processor, config)
        return processor

    return make


@pytest.mark.parametrize(("scheduler", "seconds"), [(SCHEDULER, CLOSE_SECONDS), ("other.Scheduler", None)])
def test_the_shutdown_is_bounded_only_with_our_scheduler(
    make_processor: Any, scheduler: str, seconds: int | None
) -> None:
    make_processor(vllm_config(scheduler))
    assert uvicorn.Config("app:app").timeout_graceful_shutdown == seconds


@pytest.mark.parametrize("is_v2", [False, True])
def test_min_p_and_logit_biases_are_allowed_only_with_our_scheduler(make_processor: Any, is_v2: bool) -> None:
    """vLLM refuses them where an input processor has a speculative configuration."""
    ours = make_processor(vllm_config(is_v2=is_v2))
    stock = make_processor(vllm_config("other.Scheduler", is_v2=is_v2))
    for params in (SamplingParams(min_p=0.1), SamplingParams(logit_bias={"1": 1.0})):
        params._validate_spec_decode(ours.speculative_config)
        with pytest.raises(VLLMValidationError, match="min_p"):
            params._validate_spec_decode(stock.speculative_config)


@pytest.mark.parametrize(
    ("lenience", "is_v2", "is_refused"), [(0.5, True, True), (1, True, False), (0.5, False, False)]
)
def test_lenience_is_refused_on_v2(
    make_processor: Any, lenience: float, is_v2: bool, is_refused: bool
) -> None:
    processor = make_processor(vllm_config(is_v2=is_v2))
    validate = plugin._patch_validate(lambda *_: "validated")
    params = SamplingParams(extra_args={"forerun_lenience": lenience})
    if is_refused:
        with pytest.raises(VLLMValidationError, match=r"forerun_lenience.*V2"):
            validate(processor, params)
    else:
        assert validate(processor, params) == "validated"


@pytest.mark.parametrize(
    ("is_v2", "is_async", "terms"), [(True, True, "V2, async"), (False, False, "V1, sync")]
)
def test_the_engine_logs_its_runner_and_mode(
    make_processor: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_v2: bool,
    is_async: bool,
    terms: str,
) -> None:
    monkeypatch.delenv("FORERUN_LOG_RUNNER", raising=False)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO, logger="vllm.forerun")
    make_processor(vllm_config("other.Scheduler", is_v2=is_v2, is_async=is_async))
    assert caplog.messages == []
    make_processor(vllm_config(is_v2=is_v2, is_async=is_async))
    (line,) = caplog.messages
    assert terms in line


def test_a_draft_model_with_other_tokens_is_refused_when_the_engine_starts(
    make_processor: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer, models

    for name, last in (("target", "b"), ("same", "b"), ("twin", "c")):
        (tmp_path / name).mkdir()
        vocabulary = {"<unk>": 0, "a": 1, last: 2}
        Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")).save(
            str(tmp_path / name / "tokenizer.json")
        )
    (tmp_path / "bare").mkdir()

    def start(draft: str, *, runs_draft_model: bool = True) -> None:
        config = vllm_config(is_v2=True)
        config.model_config.tokenizer = str(tmp_path / "target")
        config.speculative_config = SimpleNamespace(
            model=str(tmp_path / draft), uses_draft_model=lambda: runs_draft_model
        )
        make_processor(config)

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="vllm.forerun")
    start("same")
    with pytest.raises(VocabularyMismatch, match="token 2"):
        start("twin")
    start("twin", runs_draft_model=False)
    assert caplog.messages == []
    start("bare")
    (line,) = caplog.messages
    assert "bare" in line


@pytest.mark.parametrize(
    ("settings", "term"), [({"max_drft": 3}, "max_draft"), ({"drafters": ["sufix"]}, "suffix")]
)
def test_invalid_settings_exit_with_one_line(settings: Any, term: str) -> None:
    from forerun.engines.vllm.__main__ import _check_settings

    with pytest.raises(SystemExit) as stopped:
        _check_settings(SimpleNamespace(additional_config={"forerun": settings}))
    (line,) = str(stopped.value).splitlines()
    assert term in line
    _check_settings(SimpleNamespace(additional_config={"forerun": {"max_draft": 3}}))
    _check_settings(SimpleNamespace(additional_config={}))


def test_all_processes_of_a_server_agree_on_its_instance_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.engines.vllm import __main__ as entry

    monkeypatch.setattr(os, "environ", {"FORERUN_INSTANCE": "another server's"})
    entry._share_with_processes()
    assert os.environ["FORERUN_INSTANCE"] != "another server's"
    assert os.environ["FORERUN_CORES"] == str(len(os.sched_getaffinity(0)))
