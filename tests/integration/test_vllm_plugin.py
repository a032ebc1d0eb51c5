"""The plug-in changes vLLM's front end only where forerun's scheduler runs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make setup")

import uvicorn

from forerun.engines.vllm import plugin
from forerun.engines.vllm.launch import SCHEDULER
from forerun.engines.vllm.shutdown import CLOSE_SECONDS


@pytest.mark.parametrize(("scheduler", "seconds"), [(SCHEDULER, CLOSE_SECONDS), ("other.Scheduler", None)])
def test_the_shutdown_is_bounded_only_with_our_scheduler(
    monkeypatch: pytest.MonkeyPatch, scheduler: str, seconds: int | None
) -> None:
    monkeypatch.setattr(uvicorn.Config, "__init__", uvicorn.Config.__init__)
    monkeypatch.setattr(plugin, "_export_metrics", lambda _: None)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler), additional_config={}, instance_id="i"
    )
    processor: Any = SimpleNamespace(speculative_config=None)
    plugin._patch_init(lambda *_: None)(processor, config)
    assert uvicorn.Config("app:app").timeout_graceful_shutdown == seconds


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
