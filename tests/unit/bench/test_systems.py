"""The commands of the servers under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from forerun.bench import served_model, systems
from forerun.bench.served_model import ServedModel, required_flags, vllm_server_flags
from forerun.bench.system_names import FORERUN, VLLM
from forerun.bench.systems import find_systems
from forerun.cli.main import app
from forerun.errors import ServerFailed

CHANGES_THE_BASELINE = (
    "--enforce-eager",
    "--no-enable-prefix-caching",
    "--no-enable-chunked-prefill",
    "--max-num-seqs",
    "--max-model-len",
)


def commands_of(model: ServedModel, *names: str) -> dict[str, tuple[str, ...]]:
    return {each.name: each.command for each in find_systems(model, names, {})}


def test_vllm_servers_run_with_the_defaults_of_vllm(tmp_path: Path) -> None:
    for command in commands_of(ServedModel(tmp_path), VLLM, "vllm-ngram", FORERUN).values():
        assert not set(CHANGES_THE_BASELINE) & set(command)


def test_flags_of_the_user_reach_every_vllm_server_after_ours(tmp_path: Path) -> None:
    given = ("--max-model-len", "512", "--enforce-eager")
    model = ServedModel(tmp_path, max_length=4096, vllm_flags=given)
    for command in commands_of(model, VLLM, "vllm-ngram", FORERUN).values():
        at = command.index("--enforce-eager")
        assert command[at - 2 : at + 1] == given
        assert command.index("4096") < at, "of two equal flags the last one wins"
    (other,) = {command for name, command in commands_of(model, "transformers").items()}
    assert not set(given) & set(other)


@pytest.mark.parametrize(
    ("temperatures", "on_cpu", "expected"),
    [
        ([0.0], True, ()),
        ([0.0, 1.0], True, ("--no-enable-chunked-prefill",)),
        ([1.0], False, ()),
    ],
)
def test_chunked_prefill_is_disabled_only_where_stock_vllm_fails_with_it(
    monkeypatch: pytest.MonkeyPatch, temperatures: list[float], on_cpu: bool, expected: tuple[str, ...]
) -> None:
    monkeypatch.setattr(served_model, "_is_cpu_only", lambda: on_cpu)
    assert required_flags(temperatures) == expected


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], float]]:
    """The commands and time limits of servers; none of them is started."""
    seen: list[tuple[tuple[str, ...], float]] = []

    def refuse(command: tuple[str, ...], log: Path, **given: Any) -> None:
        seen.append((command, given["startup_timeout"]))
        raise ServerFailed("not started in this test")

    monkeypatch.setattr(systems, "started", refuse)
    return seen


def bench_run(directory: Path, *flags: str) -> Result:
    arguments = ["bench", "run", "code-editing", "--model", str(directory)]
    return CliRunner().invoke(app, [*arguments, "-o", str(directory / "bench.jsonl"), *flags])


def test_bench_run_passes_arguments_after_two_dashes_on_and_records_them(
    tmp_path: Path, refused: list[tuple[tuple[str, ...], float]]
) -> None:
    flags = ("--startup-timeout", "7", "--dtype", "float32", "--", "--enforce-eager", "--seed", "3")
    found = bench_run(tmp_path, *flags)
    assert found.exit_code == 1, found.output
    assert len(refused) == 2
    for command, timeout in refused:
        at = command.index("--enforce-eager")
        assert command[at : at + 3] == ("--enforce-eager", "--seed", "3")
        assert timeout == 7
    facts = json.loads((tmp_path / "bench.jsonl").read_text().splitlines()[0])["facts"]
    assert facts["vllm_flags"] == ["--dtype", "float32", "--enforce-eager", "--seed", "3"]
    assert facts["vllm_environment"]["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert "code-editing" not in facts["vllm_flags"]
    assert len(facts["workload"]["questions"]) == 4, "the flags are not taken for suites"


def test_servers_have_ten_minutes_to_start_by_default(
    tmp_path: Path, refused: list[tuple[tuple[str, ...], float]]
) -> None:
    bench_run(tmp_path)
    assert [timeout for _, timeout in refused] == [600, 600]


def test_the_flags_of_a_vllm_server_begin_with_its_dtype(tmp_path: Path) -> None:
    assert vllm_server_flags(ServedModel(tmp_path, "float32", max_length=512)) == [
        "--dtype",
        "float32",
        "--max-model-len",
        "512",
    ]
