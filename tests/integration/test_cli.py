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


def test_theory_corrects_the_figures_for_four_guesses() -> None:
    accepted = json.loads(run("theory", "--json"))["accepted_of_4"]
    assert {alpha: round(value, 2) for alpha, value in accepted.items()} == {
        "0.5": 0.94,
        "0.7": 1.77,
        "0.9": 3.1,
    }


def test_theory_prints_a_table_with_its_best_line() -> None:
    shown = run("theory", "--alpha", "0.8", "--cost", "0.05")
    assert "3.09x" in shown
    assert "Best: 8 guesses a step." in shown
    assert "do not guess" in run("theory", "--alpha", "0.1", "--cost", "0.5")


def test_theory_without_arguments_shows_the_best_for_many_alphas() -> None:
    shown = run("theory")
    assert "0.95" in shown
    assert "the best number of guesses" in shown


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
    assert "pip install 'forerun[plots]'" in result.output


def test_an_alpha_that_is_no_chance_is_refused() -> None:
    result = CliRunner().invoke(app, ["theory", "--alpha", "1.5"])
    assert result.exit_code == 2


SAMPLE = Path(__file__).parents[1] / "data" / "transcripts.jsonl"


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "vllm-ngram"])
def test_replay_reports_every_category(drafter: str) -> None:
    report = json.loads(run("replay", str(SAMPLE), "--drafter", drafter, "--nodes", "4", "--json"))
    assert len(report["categories"]) == 7
    for line in report["categories"].values():
        assert 1 <= line["tokens_per_step"] <= 5
        assert 0 < line["guesses_per_step"] <= 4
        assert len(line["acceptance_by_depth"]) <= 4
        assert line["microseconds_per_proposal"] > 0
        assert "tokens_per_cost" not in line


def test_replay_prints_a_table_for_people() -> None:
    shown = run("replay", str(SAMPLE), "--price", "0.012")
    assert "summarization" in shown
    assert "geometric mean" in shown
    assert "at 1.2%" in shown


def test_replay_says_what_is_wrong(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for args, message in (
        (["replay", str(empty)], "no transcripts"),
        (["replay", str(SAMPLE), "--drafter", "ngram", "--shared"], "own text only"),
        (["replay", str(SAMPLE), "--corpus", str(SAMPLE)], "not a corpus"),
    ):
        result = CliRunner().invoke(app, args)
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())
