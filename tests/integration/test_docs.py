"""What the documents show is what happens."""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forerun.audit.exact.claims import ClaimKind
from forerun.audit.exact.mutants import MUTANTS
from forerun.audit.exact.token_claims import prove_follow, prove_lenient_greedy, prove_race
from forerun.audit.report_format import number
from forerun.bench.load import NEAR, lines_of, runs_of
from forerun.bench.load import markdown as load_table
from forerun.simulate.table import markdown as simulations

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


MODEL = '"MODEL"'
"""What stands for a model's directory in the documents."""


def python_in(document: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)


def promised(code: str) -> list[str]:
    """What the comments say is printed."""
    return re.findall(r"^print\(.*\)  # (\[.*?\])", code, flags=re.MULTILINE)


def run(*command: str | Path) -> str:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_in_documents_runs_and_prints_what_it_says(document: Path) -> None:
    for code in python_in(document):
        if MODEL not in code:
            assert run("-c", code).splitlines() == promised(code)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_documents_exist(document: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for line in re.findall(r"^(?:make|forerun) .*$", document.read_text(), flags=re.MULTILINE):
        words = line.split("#")[0].split()
        if words[0] == "make":
            assert words[1] in targets
        else:
            shown = run(
                "-m", "forerun", *[word for word in words[1:] if not word.startswith("-")][:2], "--help"
            )
            assert all(word in shown for word in words if word.startswith("--"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example: Path) -> None:
    assert run(example).strip()


def test_the_readme_counts_the_mutants_rightly() -> None:
    others = [*prove_follow(), *prove_race(), *prove_lenient_greedy()]
    num_mutants = len(MUTANTS) + 1 + sum(row.kind is ClaimKind.MUTANT for row in others)
    assert num_mutants == 27
    assert "Twenty-seven sabotaged" in (ROOT / "README.md").read_text()


def test_the_lab_notes_quote_the_record() -> None:
    record = json.loads((ROOT / "docs" / "records" / "bench-core.json").read_text())
    notes = (ROOT / "docs" / "lab-notes.md").read_text()
    assert len(record["lines"]) == 6
    for line in record["lines"]:
        assert "{:.2f} [{:.2f}, {:.2f}]".format(*line["ratio"]) in notes, line["name"]
        assert line["limit"] is None or line["ratio"][0] <= line["limit"]


def test_tables_of_speeds_are_what_the_record_says() -> None:
    script = ROOT / "scripts" / "readme.py"
    made = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def test_the_lab_notes_quote_the_record_of_the_drafters() -> None:
    record = json.loads((ROOT / "docs" / "records" / "bench-drafters.json").read_text())
    notes = (ROOT / "docs" / "lab-notes.md").read_text()
    assert len(record["lines"]) == 13
    for line in record["lines"]:
        figure = line["figure"]
        shown = "{:.2f} [{:.2f}, {:.2f}]".format(*figure) if len(figure) == 3 else f"{figure[0]:.2f}"
        assert f"| {line['name']} | {shown} |" in notes
        assert line["limit"] is None or figure[0] <= line["limit"], line["name"]


def test_the_readme_and_the_notes_quote_the_record_of_the_local_engine() -> None:
    record = json.loads((ROOT / "docs" / "records" / "bench-local.json").read_text())
    readme = (ROOT / "README.md").read_text()
    notes = (ROOT / "docs" / "lab-notes.md").read_text()
    greedy = [line for line in record["lines"] if line.get("temperature") == 0]
    drawn = [line for line in record["lines"] if line.get("temperature") == 1]
    assert len(greedy) == len(drawn) == 7
    for line in greedy:
        lookup = line["tokens_per_second"]["prompt lookup"] / line["tokens_per_second"]["plain"]
        assert f"| {line['over_plain']:.2f} ({line['tokens_per_pass']:.2f}) |" in readme
        assert f"| {lookup:.2f} |" in readme
    for line in drawn:
        assert f"| {line['over_plain']:.2f} |" in notes
    for line in record["lines"]:
        if "share" in line:
            assert f"{line['share']:.1%}".replace("%", " %") in notes


def test_the_notes_quote_the_record_of_the_local_engine_where_guesses_cost() -> None:
    record = json.loads((ROOT / "docs" / "records" / "bench-local-float32.json").read_text())
    notes = (ROOT / "docs" / "lab-notes.md").read_text()
    timed = [line for line in record["lines"] if "over_plain" in line]
    assert len(timed) == 14
    greedy = [line for line in timed if not line["temperature"]]
    assert sum(line["same_words"] for line in greedy) == sum(line["prompts"] for line in greedy) == 28
    for line in timed:
        beside = "" if line["temperature"] else f" ({line['tokens_per_pass']:.2f})"
        assert f"| {line['over_plain']:.2f}{beside} |" in notes
    for key, told in (("over_plain", "| {:.2f} |"), ("over_lookup", "That is {:.2f} over prompt lookup")):
        assert told.format(statistics.geometric_mean(line[key] for line in greedy)) in notes
    shares = [f"{line['share']:.1%}".replace("%", " %") for line in record["lines"] if "share" in line]
    assert f"{shares[0]} of a step at batch 1 and {shares[1]} at batch 16" in notes


def test_the_figures_of_simulations_are_the_recorded_ones() -> None:
    record = json.loads((ROOT / "docs" / "records" / "simulate.json").read_text())
    document = (ROOT / "docs" / "scaling.md").read_text()
    assert simulations(record["scenarios"]) in document
    grid = record["grid"]
    assert len(grid) == 312
    over = {
        text: [each["over_best_fixed"] for each in grid if each["text"] == text]
        for text in ("stationary", "shifting", "mixed")
    }
    least = {text: math.floor(1000 * min(some)) / 1000 for text, some in over.items()}
    plain = math.floor(1000 * min(each["over_plain"] for each in grid)) / 1000
    spent = max(each["spent_finding_out"] for each in grid)
    for told in (
        f"at least {plain:.3f} of plain decoding everywhere",
        f"at least {least['stationary']:.3f} of the best fixed length where texts are of one kind",
        f"{least['shifting']:.3f} where they change",
        f"{least['mixed']:.3f} to {max(over['mixed']):.3f} times it where requests differ",
        f"at most {100 * spent:.2f} % of the time",
    ):
        assert told in document, told
    assert plain >= 0.98
    assert least["stationary"] >= 0.97
    assert least["mixed"] >= 1.05
    assert spent <= 0.01


def test_the_figures_under_load_are_the_recorded_ones() -> None:
    record = json.loads((ROOT / "docs" / "records" / "bench-load.json").read_text())
    lines = lines_of(runs_of(record["runs"]))
    assert load_table(lines) in (ROOT / "docs" / "control.md").read_text()
    assert len(lines) == len(record["facts"])
    for line in lines:
        assert line["holds"], line
        assert "over_best" not in line or line["over_best"]["without_noise"] >= NEAR, line


def test_no_document_names_a_place_on_somebodys_machine() -> None:
    files = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split()
    for name in files:
        file = ROOT / name
        if file.suffix in {".md", ".py", ".toml", ".yml", ".sh", ""} and file.is_file():
            text = file.read_text()
            assert not re.search(r"/(root|home|work|Users)/\w", text), name


def test_the_audits_in_the_guide_are_the_recorded_ones() -> None:
    record = json.loads((ROOT / "docs" / "records" / "audits.json").read_text())
    guide = (ROOT / "docs" / "auditing.md").read_text()
    for name, found in record.items():
        (line,) = [line for line in guide.splitlines() if line.startswith(f"| {name} |")]
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert cells == [found["verdict"], *_figures_of(found)]


def _figures_of(found: dict[str, Any]) -> list[str]:
    """Samples, evidence, bound and seconds of an audit, as the guide prints them."""
    evidence = "" if found["e_value"] is None else number(found["e_value"])
    bound = "" if found["tv_bound"] is None else f"{found['tv_bound']:.3f}"
    return [f"{found['num_samples']:,}", evidence, bound, f"{found['seconds']:.0f} s"]
