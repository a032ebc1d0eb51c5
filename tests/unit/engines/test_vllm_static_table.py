"""A served model's static table is used once it is complete, and built if it is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.config import BUILD_VARIABLE, SpeculationConfig
from forerun.drafters.static_table import StaticTable
from forerun.drafters.static_table_cache import table_path
from forerun.engines.guarded_drafter import DrafterTotals
from forerun.engines.vllm import static_table
from forerun.engines.vllm.speculation import make_chain_drafter
from forerun.engines.vllm.static_table import CHECK_SECONDS, StaticTableWatch, start_build, use_static_table
from forerun.engines.vllm.step_plan import DraftingPlan, RequestUpdate
from forerun.engines.vllm.v2.worker_drafter import WorkerDrafter
from forerun.types import RequestView, TopTokens
from unit.engines.test_vllm_worker_drafter import make_config


def make_table() -> StaticTable:
    """After every token the next ones."""
    last = np.arange(50, dtype=np.int32)
    tokens = (last[:, None] + np.arange(1, 9, dtype=np.int32)) % 50
    probs = np.tile(0.5 ** np.arange(1, 9, dtype=np.float32), (50, 1))
    table = StaticTable(50)
    table.add(TopTokens(np.stack([last, last], axis=1), tokens, probs))
    return table


def test_a_table_is_taken_once_it_is_complete_and_only_once(model: Path) -> None:
    now = 0.0
    watch = StaticTableWatch(str(model), clock=lambda: now)
    file = table_path(model)
    assert file is not None
    assert watch.take() is None
    make_table().save(file)
    assert watch.take() is None, "the disk is looked at now and then"
    now += CHECK_SECONDS
    table = watch.take()
    assert table is not None
    assert (table.successors == make_table().successors).all()
    now += CHECK_SECONDS
    assert watch.take() is None


def test_a_server_drafts_without_an_unreadable_table(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = table_path(model)
    assert file is not None
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PK\x03\x04 no table")
    watch = StaticTableWatch(str(model), clock=lambda: 0.0)
    with caplog.at_level("WARNING"):
        assert watch.take() is None
    assert "is not a static table" in caplog.text
    assert watch.take() is None, "it is not read again"


def test_drafters_use_a_table_from_the_next_proposal_on() -> None:
    chains = make_chain_drafter(make_config(), DrafterTotals())
    views = [RequestView("r", [9])]
    assert len(chains.propose(views, [4], [None])[0]) == 0
    use_static_table(chains.drafters, make_table())
    assert chains.propose(views, [4], [None])[0].tokens.tolist() == [10, 11, 12, 13]


def test_workers_get_the_table_with_a_plan() -> None:
    worker = WorkerDrafter(make_config())
    plan = DraftingPlan(-1, {"r": RequestUpdate(0, [9], 1)}, static_table=make_table())
    assert worker.draft(plan, {"r": 3}) == {"r": [10, 11, 12]}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started instead of running them."""
    commands: list[list[str]] = []

    def record(command: list[str], **_: Any) -> None:
        commands.append(command)

    monkeypatch.setattr(subprocess, "Popen", record)
    monkeypatch.setattr(static_table, "is_cpu_platform", lambda: True)
    return commands


def test_a_missing_table_is_built_in_the_background(model: Path, started: list[list[str]]) -> None:
    assert start_build(str(model), SpeculationConfig(), {}).startswith("being built")
    ((*_, command, directory, _, device, background),) = started
    assert (command, directory, device, background) == ("static-table", str(model), "cpu", "--background")


def test_nothing_is_built_that_exists_or_is_not_wanted(
    model: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SpeculationConfig()
    assert "forerun static-table" in start_build(str(model), config, {BUILD_VARIABLE: "0"})
    assert start_build(str(model), SpeculationConfig(drafters=("ngram",)), {}) == "not used"
    assert start_build(str(model), SpeculationConfig(max_draft=0), {}) == "not used"
    assert "forerun static-table" in start_build("no/such-model", config, {})
    monkeypatch.setattr(static_table, "_MEMORY_SHARE", 0.0)
    assert "forerun static-table" in start_build(str(model), config, {}), "the model does not fit twice"
    file = table_path(model)
    assert file is not None
    make_table().save(file)
    assert start_build(str(model), config, {}) == "in use"
    assert not started
