from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import forerun
from forerun.cli.main import app

TABLE_1 = {
    (0.6, 2): (1.53, 1.96),
    (0.7, 3): (1.58, 2.53),
    (0.8, 2): (1.23, 2.44),
    (0.8, 5): (1.63, 3.69),
    (0.9, 2): (1.11, 2.71),
    (0.9, 10): (1.60, 6.86),
}


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_version_is_the_packages() -> None:
    assert run("--version").strip() == f"forerun {forerun.__version__}"


def test_the_module_behind_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("forerun")
    shown = subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "audit" in shown
    assert "theory" in shown


def test_theory_reproduces_table_1() -> None:
    report = json.loads(run("theory", "--json"))
    assert len(report["table_1"]) == len(TABLE_1)
    for line in report["table_1"]:
        expected = TABLE_1[line["alpha"], line["gamma"]]
        assert (round(line["operations"], 2), round(line["speed"], 2)) == expected


def test_theory_reproduces_nine_of_the_twelve_values_of_table_4() -> None:
    lines = json.loads(run("theory", "--json"))["table_4"]
    assert len(lines) == 12
    right = [line for line in lines if round(line["exp"], 1) == line["printed"]]
    wrong = [line for line in lines if round(line["exp"], 1) != line["printed"]]
    assert len(right) == 9
    assert sorted(round(line["exp"], 2) for line in wrong) == [1.54, 1.93, 2.35]


def test_theory_corrects_the_figures_for_a_draft_length_of_four() -> None:
    accepted = json.loads(run("theory", "--json"))["accepted_of_4"]
    assert {alpha: round(value, 2) for alpha, value in accepted.items()} == {
        "0.5": 0.94,
        "0.7": 1.77,
        "0.9": 3.1,
    }


def rows_of(shown: str) -> list[list[str]]:
    """The cells of a table's rows."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]


@pytest.mark.parametrize(("alpha", "cost", "best"), [("0.8", "0.05", 8), ("0.1", "0.5", 0), ("1", "0", 32)])
def test_theory_prints_every_draft_length_to_three_beyond_the_best_and_marks_the_best(
    alpha: str, cost: str, best: int
) -> None:
    rows = rows_of(run("theory", "--alpha", alpha, "--cost", cost))
    assert [int(row[0]) for row in rows] == list(range(min(best + 3, 32) + 1))
    assert [int(row[0]) for row in rows if row[-1] == "best"] == [best]
    report = json.loads(run("theory", "--alpha", alpha, "--cost", cost, "--json"))["alpha"][alpha]
    assert [line["gamma"] for line in report["gammas"]] == [int(row[0]) for row in rows]


def test_theory_without_an_acceptance_rate_shows_the_best_draft_length_of_several() -> None:
    rows = rows_of(run("theory"))
    report = json.loads(run("theory", "--json"))["alpha"]
    assert {row[0]: int(row[1]) for row in rows} == {key: each["best_gamma"] for key, each in report.items()}


def test_simulate_explains_how_many_replicas_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.simulate.scenario import Scenario

    monkeypatch.setattr("forerun.simulate.scenario.replicas_needed", lambda *_: 7)
    file = tmp_path / "scenario.yaml"
    promised = Scenario.read("laptop").model_copy(update={"token_seconds": 0.123})
    file.write_text(promised.model_dump_json())
    table, _, explained = run("simulate", str(file)).partition("replicas needed:")
    assert {"replicas", "needed"} <= set(table.split())
    lines = [line.split() for line in table.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["forerun"]] == ["7"]
    assert "123 ms" in explained
    assert "replicas needed" in run("simulate", "--help")
    assert "replicas needed" not in run("simulate", "laptop")


def test_theory_draws_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "theory.png"
    run("theory", "--plot", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 20_000


def test_a_missing_plotting_library_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["theory", "--plot", str(tmp_path / "x.png")])
    assert result.exit_code == 1
    assert "pip install" in result.output
    assert "[plots]" in result.output


def test_an_alpha_above_one_is_refused() -> None:
    result = CliRunner().invoke(app, ["theory", "--alpha", "1.5"])
    assert result.exit_code == 2


SAMPLE = Path(__file__).parents[1] / "data" / "transcripts.jsonl"


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "vllm-ngram"])
def test_replay_reports_every_category(drafter: str) -> None:
    report = json.loads(run("replay", str(SAMPLE), "--drafter", drafter, "--nodes", "4", "--json"))
    assert len(report["categories"]) == 7
    for line in report["categories"].values():
        assert 1 <= line["tokens_per_step"] <= 5
        assert 0 < line["draft_tokens_per_step"] <= 4
        assert len(line["acceptance_by_depth"]) <= 4
        assert line["microseconds_per_proposal"] > 0
        assert "tokens_per_cost" not in line


def test_replay_prints_a_table() -> None:
    shown = run("replay", str(SAMPLE), "--price", "0.012")
    assert "summarization" in shown
    assert "geometric mean" in shown
    assert "at 1.2%" in shown


def test_replay_explains_invalid_input(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for args, message in (
        (["replay", str(empty)], "empty"),
        (["replay", str(SAMPLE), "--drafter", "ngram", "--share-outputs"], "own text only"),
        (["replay", str(SAMPLE), "--corpus", str(SAMPLE)], "not a corpus"),
    ):
        result = CliRunner().invoke(app, args)
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())
