"""CI runs the project's own targets: `.ci/run`, GitHub's workflows and pre-commit call nothing else."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ISSUE_FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w-]+):", makefile, flags=re.MULTILINE))


def commands(workflow: Any) -> list[str]:
    """The shell commands of a workflow's steps, a line each."""
    steps = chain.from_iterable(job["steps"] for job in workflow["jobs"].values())
    return [line for step in steps for line in step.get("run", "").splitlines() if line]


def unknown(lines: list[str]) -> list[str]:
    """The lines that are not `make` with an existing target."""
    known = targets()
    return [line for line in lines if line.split()[0] != "make" or line.split()[1] not in known]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_call_only_existing_make_targets(file: Path) -> None:
    assert commands(read(file))
    assert unknown(commands(read(file))) == []


def test_the_check_of_workflows_can_fail() -> None:
    workflow = {"jobs": {"one": {"steps": [{"uses": "x"}, {"run": "make check\nmake nothing\npytest"}]}}}
    assert unknown(commands(workflow)) == ["make nothing", "pytest"]


def test_the_workflow_runs_every_target_of_the_ci_script() -> None:
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert unknown(script) == []
    in_workflow = {line.split()[1] for line in commands(read(ROOT / ".github" / "workflows" / "ci.yml"))}
    assert {line.split()[1] for line in script} <= in_workflow


def test_the_workflow_tests_the_python_versions_of_the_package() -> None:
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', package)
    jobs = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    assert jobs["checks"]["strategy"]["matrix"]["python"] == promised


def test_hooks_run_the_tools_of_the_environment_or_a_script() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    for hook in hooks:
        assert hook["language"] == "system"
        program = hook["entry"].split()[0]
        if program.startswith(".venv/bin/"):
            assert program.replace(".venv/bin/", "$(RUN)/") in makefile
        else:
            assert (ROOT / program).stat().st_mode & 0o100
    assert {hook["id"] for hook in hooks} >= {"ruff-format", "ruff-check", "mypy"}


@pytest.mark.parametrize("file", ISSUE_FORMS, ids=lambda file: file.stem)
def test_issue_forms_name_commands_that_exist(file: Path) -> None:
    from forerun.cli.main import app

    names = {each.name or each.callback.__name__ for each in app.registered_commands if each.callback}
    names |= {each.name for each in app.registered_groups if each.name}
    shown = re.findall(r"`forerun (\w+)", file.read_text(encoding="utf-8"))
    assert set(shown) <= names
    assert "doctor" in shown or file.stem in ("config", "feature")
