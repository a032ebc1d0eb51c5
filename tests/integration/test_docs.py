"""The documents show what the program does: examples, commands, metrics, modules and recorded numbers."""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forerun.audit.exact.claims import ClaimKind
from forerun.audit.exact.mutants import MUTANTS
from forerun.audit.exact.token_claims import prove_lenient_greedy, prove_match_target, prove_race
from forerun.audit.report_format import format_number
from forerun.bench.load import MIN_RATIO_TO_BEST, from_rows
from forerun.bench.load_table import lines_of
from forerun.bench.load_table import markdown as load_table
from forerun.cli.main import app
from forerun.simulate.table import markdown as simulations

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RECORDS = ROOT / "docs" / "records"

MODEL = '"MODEL"'
"""The placeholder for a model's directory; examples with it run in tests/e2e/test_examples.py."""

SERVER = "http://localhost:8000"
"""The address of a server; tests/e2e/serve runs what these examples do."""

MISSED_LIMITS = {
    "suffix: a proposal at 8k tokens, µs",
    "all sources: a proposal at 128k tokens, µs",
    "a step for 256 requests of 8k tokens, ms",
}
"""Limits of `make bench-drafters` that are missed since drafts use the target's logits (lab notes)."""


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def read_record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RECORDS / name).read_text(encoding="utf-8"))
    return record


def has_line_with(document: str, *parts: str) -> bool:
    """Whether one line of a document (a paragraph, an item or a table row) contains all of these."""
    return any(all(part in line for part in parts) for line in document.splitlines())


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def python_in(document: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)


def commands_in(document: Path) -> list[str]:
    """The `make` and `forerun` commands in code blocks."""
    text = document.read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^(?:make|forerun) .*$", "\n".join(blocks), flags=re.MULTILINE)


def promised(code: str) -> list[str]:
    """The lines that the comments of an example promise to be printed."""
    return re.findall(r"^print\(.*\)  # (\[.*?\])", code, flags=re.MULTILINE)


def run(*command: str | Path) -> str:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def id_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=id_of)
def test_python_in_documents_prints_what_its_comments_promise(document: Path) -> None:
    for code in python_in(document):
        if MODEL not in code and SERVER not in code:
            assert run("-c", code).splitlines() == promised(code)


@cache
def help_of(*command: str) -> str:
    """The help of a command, in this process: a process for each line of the documents takes minutes."""
    shown = CliRunner().invoke(app, [*command, "--help"], prog_name="forerun", env={"COLUMNS": "200"})
    assert shown.exit_code == 0, command
    return shown.output


@pytest.mark.parametrize("document", DOCUMENTS, ids=id_of)
def test_commands_in_documents_exist_with_their_flags(document: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), flags=re.MULTILINE))
    for line in commands_in(document):
        command, *arguments = line.split("#")[0].split(" -- ")[0].split()
        if command == "make":
            assert arguments[0] in targets
            continue
        names = [each for each in arguments if each[0].isalpha()][:2]
        shown = help_of(*names)
        for flag in arguments:
            assert not flag.startswith("--") or flag.split("=")[0] in shown, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=id_of)
def test_metrics_in_documents_are_exported(document: Path) -> None:
    reference = read("docs/reference/metrics.md")
    exported = set(re.findall(r"^\| `(forerun:\w+)` \|", reference, flags=re.MULTILINE))
    assert exported
    assert set(re.findall(r"\bforerun:[a-z_]+\b", document.read_text())) <= exported


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example: Path) -> None:
    assert run(example).strip()


def test_the_tree_in_the_architecture_page_lists_every_module() -> None:
    modules = {
        path.relative_to(ROOT / "src" / "forerun").as_posix()
        for path in (ROOT / "src" / "forerun").rglob("*.py")
    }
    listed = set(listed_modules(read("docs/architecture.md")))
    assert {each for each in modules if not each.endswith("/__init__.py")} <= listed
    assert listed <= modules


def listed_modules(page: str) -> Iterator[str]:
    """The files of the annotated tree. Two spaces indent a level; a line that begins with a directory lists
    files of that directory.
    """
    tree = page.split("```\nsrc/forerun/\n")[1].split("\n```", maxsplit=1)[0]
    folders: list[str] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        folders = folders[:depth]
        if found := re.match(r"\s+(\w+)/", line):
            folders.append(found[1])
        yield from ("/".join([*folders, name]) for name in re.findall(r"\b\w+\.py\b", line))


def test_the_readme_states_the_number_of_mutants() -> None:
    others = [*prove_match_target(), *prove_race(), *prove_lenient_greedy()]
    num_mutants = len(MUTANTS) + 1 + sum(row.kind is ClaimKind.MUTANT for row in others)
    assert num_mutants == 35
    assert re.search(r"\b(35|thirty-five)\b[^.]*\bsabotaged\b", read("README.md"), flags=re.IGNORECASE)


def test_the_lab_notes_quote_the_record_of_verification_costs() -> None:
    record, notes = read_record("bench-core.json"), read("docs/lab-notes.md")
    assert len(record["lines"]) == 6
    for line in record["lines"]:
        assert "{:.2f} [{:.2f}, {:.2f}]".format(*line["ratio"]) in notes, line["name"]
        assert line["limit"] is None or line["ratio"][0] <= line["limit"]


def test_generated_tables_are_fresh() -> None:
    script = ROOT / "scripts" / "readme.py"
    made = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def test_the_lab_notes_quote_the_record_of_the_drafters() -> None:
    record, notes = read_record("bench-drafters.json"), read("docs/lab-notes.md")
    assert len(record["lines"]) == 16
    for line in record["lines"]:
        figure = line["figure"]
        shown = "{:.2f} [{:.2f}, {:.2f}]".format(*figure) if len(figure) == 3 else f"{figure[0]:.2f}"
        assert f"| {line['name']} | {shown} |" in notes
    missed = {line["name"] for line in record["lines"] if line["figure"][0] > (line["limit"] or math.inf)}
    assert missed == MISSED_LIMITS


def test_the_readme_and_the_notes_quote_the_record_of_the_local_engine() -> None:
    record = read_record("bench-local.json")
    readme, notes = read("README.md"), read("docs/lab-notes.md")
    greedy = [line for line in record["lines"] if line.get("temperature") == 0]
    sampled = [line for line in record["lines"] if line.get("temperature") == 1]
    assert len(greedy) == len(sampled) == 7
    for line in greedy:
        lookup = line["tokens_per_second"]["prompt lookup"] / line["tokens_per_second"]["plain"]
        assert f"| {line['over_plain']:.2f} ({line['tokens_per_pass']:.2f}) |" in readme
        assert f"| {lookup:.2f} |" in readme
    for line in sampled:
        assert f"| {line['over_plain']:.2f} |" in notes
    shares = [percent(line["share"]) for line in record["lines"] if "share" in line]
    assert len(shares) == 2
    assert has_line_with(notes, *shares)


def test_the_notes_quote_the_record_of_the_local_engine_in_float32() -> None:
    record, notes = read_record("bench-local-float32.json"), read("docs/lab-notes.md")
    timed = [line for line in record["lines"] if "over_plain" in line]
    assert len(timed) == 14
    greedy = [line for line in timed if not line["temperature"]]
    assert sum(line["same_words"] for line in greedy) == sum(line["prompts"] for line in greedy) == 28
    for line in timed:
        tokens_per_step = "" if line["temperature"] else f" ({line['tokens_per_pass']:.2f})"
        assert f"| {line['over_plain']:.2f}{tokens_per_step} |" in notes
    over_baseline, over_lookup = (
        f"{statistics.geometric_mean(line[key] for line in greedy):.2f}"
        for key in ("over_plain", "over_lookup")
    )
    assert f"| {over_baseline} |" in notes
    shares = [percent(line["share"]) for line in record["lines"] if "share" in line]
    assert len(shares) == 2
    assert has_line_with(notes, over_lookup, "prompt lookup", *shares)


def test_the_scaling_page_quotes_the_record_of_simulations() -> None:
    record, page = read_record("simulate.json"), read("docs/scaling.md")
    assert simulations(record["scenarios"]) in page
    grid = record["grid"]
    assert len(grid) == 312
    over_best = {
        text: [cell["over_best_fixed"] for cell in grid if cell["text"] == text]
        for text in ("stationary", "shifting", "mixed")
    }
    least = {text: math.floor(1000 * min(ratios)) / 1000 for text, ratios in over_best.items()}
    over_baseline = math.floor(1000 * min(cell["over_plain"] for cell in grid)) / 1000
    explored = max(cell["spent_finding_out"] for cell in grid)
    results = page.split("records/simulate.json")[1].split("![")[0]
    assert has_line_with(results, "non-speculative", f"{over_baseline:.3f}")
    stationary, shifting, mixed = (f"{least[text]:.3f}" for text in ("stationary", "shifting", "mixed"))
    assert has_line_with(results, "fixed", stationary, shifting, mixed, f"{max(over_best['mixed']):.3f}")
    assert has_line_with(results, "exploration", percent(explored, digits=2))
    assert over_baseline >= 0.98
    assert least["stationary"] >= 0.97
    assert least["mixed"] >= 1.05
    assert explored <= 0.01


def load_lines() -> list[dict[str, Any]]:
    record = read_record("bench-load.json")
    lines = lines_of(from_rows(record["runs"]))
    assert len(lines) == len(record["facts"])
    return lines


def test_the_control_page_quotes_the_record_under_load() -> None:
    lines = load_lines()
    assert load_table(lines) in read("docs/control.md")
    for line in lines:
        assert line["holds"], line
        assert "over_best" not in line or line["over_best"]["without_noise"] >= MIN_RATIO_TO_BEST, line


def test_the_control_page_names_every_cell_that_was_measured_slower_than_the_baseline() -> None:
    prose = "\n".join(line for line in read("docs/control.md").splitlines() if not line.startswith("|"))
    slower = [line for line in load_lines() if line["speedup"]["high"] < 1]
    assert slower
    for line in slower:
        ratio = "{median:.2f} [{low:.2f}, {high:.2f}]".format(**line["speedup"])
        assert has_line_with(prose, ratio, line["dtype"]), line


def test_the_drafters_page_names_every_row_below_the_required_ratio_to_rejection_sampling() -> None:
    lines = read_record("coupling.json")["lines"]
    assert {(line["temperature"], line["settings"]) for line in lines} == {
        (temperature, settings)
        for temperature in (0.5, 0.8, 1.0)
        for settings in ("none", "top-p 0.9", "top-k 20", "penalties")
    }
    prose = "\n".join(line for line in read("docs/drafters.md").splitlines() if not line.startswith("|"))
    for line in lines:
        named = has_line_with(prose, f"temperature {line['temperature']:g} with {line['settings']}")
        assert named == (line["ratio"][0] < 0.85), line
        assert not named or "{:.2f} [{:.2f}, {:.2f}]".format(*line["ratio"]) in prose


def test_recorded_draws_of_coupled_drafts_agree_with_their_exact_acceptance() -> None:
    """48 comparisons at four standard errors: a false alarm in 300."""
    for line in read_record("coupling.json")["lines"]:
        for name, expected in line["expected"].items():
            assert abs(line["measured"][name] - expected) <= 4 * line["standard_error"][name], line
        assert line["bound"] <= line["expected"]["coupled"] <= line["expected"]["rejection"]


def test_no_document_names_a_path_of_a_machine() -> None:
    files = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split()
    for name in files:
        file = ROOT / name
        if file.suffix in {".md", ".py", ".toml", ".yml", ".sh", ""} and file.is_file():
            text = file.read_text()
            assert not re.search(r"/(root|home|work|Users)/\w", text), name


def test_the_auditing_page_quotes_the_recorded_audits() -> None:
    record, page = read_record("audits.json"), read("docs/auditing.md")
    for name, found in record.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert cells == [found["verdict"], *_figures_of(found)]


def _figures_of(found: dict[str, Any]) -> list[str]:
    """Samples, evidence, bound and seconds of an audit, as the page prints them."""
    evidence = "" if found["e_value"] is None else format_number(found["e_value"])
    bound = "" if found["tv_bound"] is None else f"{found['tv_bound']:.3f}"
    return [f"{found['num_samples']:,}", evidence, bound, f"{found['seconds']:.0f} s"]
