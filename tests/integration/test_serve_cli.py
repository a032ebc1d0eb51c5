"""`forerun serve` and `forerun doctor`: everything that happens before an engine starts."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forerun.cli.main import app


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["serve", *args])


def printed(*args: str) -> list[str]:
    result = run(*args, "--dry-run")
    assert result.exit_code == 0, result.output
    return shlex.split(result.stdout)


def flags_of(command: list[str]) -> list[str]:
    """The flags of a printed command, after the model."""
    return command[command.index("serve") + 2 :]


def value_of(command: list[str], flag: str) -> dict[str, object]:
    value: dict[str, object] = json.loads(command[command.index(flag) + 1])
    return value


def test_the_printed_command_runs_where_vllm_has_no_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    command = printed("some/model", "--port", "8000", "--enforce-eager")
    assert command[0] == "env"
    start = command.index(sys.executable)
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in command[1:start]
    assert all("=" in assignment for assignment in command[1:start])
    assert command[start + 1 : start + 5] == ["-m", "forerun.engines.vllm", "serve", "some/model"]
    assert flags_of(command)[:3] == ["--port", "8000", "--enforce-eager"]
    assert value_of(command, "--additional-config") == {"forerun": {}}
    assert value_of(command, "--speculative-config")["model"] == "forerun.engines.vllm.NullProposer"


def test_invariant_mode_reaches_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setattr("forerun.engines.vllm.launch.is_cpu_platform", lambda: True)
    command = printed("m", "--invariant")
    assert value_of(command, "--additional-config") == {"forerun": {"invariant": True}}
    assert "--enforce-eager" in flags_of(command)
    (tmp_path / "speculation.json").write_text('{"invariant": true}')
    assert printed("m", "--speculation", str(tmp_path / "speculation.json")) == command
    monkeypatch.setattr("forerun.engines.vllm.launch.is_cpu_platform", lambda: False)
    command = printed("m", "--invariant")
    assert "VLLM_BATCH_INVARIANT=1" in command[: command.index("serve")]


def test_invariant_mode_on_a_cpu_keeps_the_v2_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr("forerun.engines.vllm.launch.is_cpu_platform", lambda: True)
    command = printed("m", "--invariant")
    assert value_of(command, "--additional-config") == {"forerun": {"invariant": True}}
    assert "--enforce-eager" in flags_of(command)
    assert not [part for part in command if "VLLM_USE_V2_MODEL_RUNNER=0" in part]


def test_on_v2_vllm_keeps_its_runner_and_its_scheduling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    command = printed("m")
    assert not [part for part in command if "VLLM_USE_V2_MODEL_RUNNER" in part or "async" in part]
    assert value_of(command, "--speculative-config")["method"] == "ngram_gpu"
    assert "--async-scheduling" in printed("m", "--async-scheduling")
    assert "--no-async-scheduling" in printed("m", "--no-async-scheduling")
    drafted = printed("m", "-sc", '{"method": "eagle3", "model": "head"}', "--drafter", "model")
    assert value_of(drafted, "--speculative-config") == {"method": "eagle3", "model": "head"}
    assert value_of(drafted, "--additional-config") == {
        "forerun": {"drafters": ["model"], "draft_model": "head"}
    }


def test_flags_and_a_file_of_settings_go_together(tmp_path: Path) -> None:
    file = tmp_path / "speculation.json"
    file.write_text('{"max_draft": 6, "drafters": ["ngram"]}')
    corpus = tmp_path / "corpus.fri"
    corpus.write_bytes(b"")
    command = printed("m", "--speculation", str(file), "--drafter", "suffix", "--corpus", str(corpus))
    assert value_of(command, "--additional-config") == {
        "forerun": {"max_draft": 6, "drafters": ["suffix"], "corpora": [str(corpus)]}
    }
    drafted = printed("m", "--draft-model", "small", "--share-outputs")
    assert value_of(drafted, "--speculative-config")["method"] == "draft_model"
    assert value_of(drafted, "--additional-config") == {
        "forerun": {"draft_model": "small", "share_outputs": True}
    }


def one_line(result: Any, *terms: str) -> None:
    """A command failed with one line that has all of these terms."""
    assert result.exit_code == 1, result.output
    (line,) = result.output.strip().splitlines()
    for term in terms:
        assert term in line


@pytest.mark.parametrize(
    ("args", "terms"),
    [
        (["m", "--drafter", "sufix"], ["'sufix'", "suffix"]),
        (["m", "--speculative-config", "{}"], ["--speculative-config", "max_draft"]),
        (["m", "--draft-model", "a", "--spec-model", "b"], ["--speculative-config", "a", "b"]),
        (["--tensor-parallel-size", "2", "m"], ["MODEL"]),
        (["m", "--additional-config", '{"forerun": {"max_draft": 3}}'], ["forerun", "--speculation"]),
    ],
)
def test_a_command_line_that_contradicts_itself_is_one_line(args: list[str], terms: list[str]) -> None:
    one_line(run(*args, "--dry-run"), *terms)


def test_an_unknown_key_of_the_settings_is_one_line_with_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "speculation.json"
    file.write_text('{"max_drft": 6}')
    one_line(run("m", "--speculation", str(file)), "max_drft", "max_draft")


class Started(Exception):
    """vLLM would have been started."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The commands that replace this process, each with its environment."""
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    found: list[tuple[list[str], dict[str, str]]] = []

    def execve(program: str, command: list[str], environment: dict[str, str]) -> None:
        found.append((command, environment))
        raise Started

    monkeypatch.setattr(os, "execve", execve)
    return found


def model_in(folder: Path, **config: object) -> Path:
    """A directory that looks like a model's."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    return folder


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return str(sock.getsockname()[1])


def test_the_printed_command_is_the_one_that_is_started(started: list[Any], tmp_path: Path) -> None:
    args = [str(model_in(tmp_path / "m")), "--port", free_port(), "--host", "127.0.0.1"]
    assert isinstance(run(*args).exception, Started)
    ((command, environment),) = started
    line = printed(*args)
    assert line[line.index(sys.executable) :] == command
    assert set(line[1 : line.index(sys.executable)]) <= {
        f"{name}={value}" for name, value in environment.items()
    }


def test_missing_files_are_reported_in_one_line_before_vllm_starts(
    started: list[Any], tmp_path: Path
) -> None:
    model, missing = str(model_in(tmp_path / "m")), str(tmp_path / "missing")
    port = ["--port", free_port(), "--host", "127.0.0.1"]
    one_line(run(missing, *port), missing, "directory")
    one_line(run(model, "--draft-model", missing, *port), "draft model", missing)
    one_line(run(model, "--corpus", missing, *port), missing, "forerun corpus build")
    (tmp_path / "speculation.json").write_text(json.dumps({"corpora": [missing]}))
    one_line(run(model, "--speculation", str(tmp_path / "speculation.json"), *port), missing)
    (tmp_path / "no model").mkdir()
    one_line(run(str(tmp_path / "no model"), *port), "config.json")
    (tmp_path / "m" / "model.safetensors").unlink()
    one_line(run(model, *port), "weights")
    assert started == []


def tokenizer_in(folder: Path, *tokens: str) -> Path:
    """A model's directory with a tokenizer of these tokens."""
    from tokenizers import Tokenizer, models

    vocabulary = {token: number for number, token in enumerate(("<unk>", *tokens))}
    Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")).save(str(model_in(folder) / "tokenizer.json"))
    return folder


def test_the_tokens_of_a_draft_model_are_compared(started: list[Any], tmp_path: Path) -> None:
    model, same = tokenizer_in(tmp_path / "m", "a", "b", "c"), tokenizer_in(tmp_path / "same", "a", "b", "c")
    twin = str(tokenizer_in(tmp_path / "twin", "a", "b", "d"))
    port = ["--port", free_port(), "--host", "127.0.0.1"]
    one_line(run(str(model), "--draft-model", twin, *port), "token 3", "same family")
    one_line(run(str(model), "--spec-model", twin, "--spec-tokens", "2", *port), "token 3")
    assert started == []
    assert isinstance(run(str(model), "--draft-model", str(same), *port).exception, Started)
    assert isinstance(
        run(twin, "--tokenizer", str(model), "--draft-model", str(same), *port).exception, Started
    )


def test_the_summary_states_runner_mode_and_reason(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = [str(model_in(tmp_path / "m")), "--port", free_port(), "--host", "127.0.0.1"]
    for value, runner in (("0", "V1"), ("1", "V2")):
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", value)
        summary = " ".join(run(*args).stderr.split())
        assert f"{runner} (VLLM_USE_V2_MODEL_RUNNER={value})" in summary
        assert "sync scheduling (" in summary
    summary = " ".join(run(*args, "--spec-method", "mtp", "--spec-tokens", "2").stderr.split())
    assert "0 to 2 tokens per step" in summary


def test_a_port_in_use_is_one_line_before_vllm_starts(started: list[Any], tmp_path: Path) -> None:
    model = str(model_in(tmp_path / "m"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        one_line(run(model, "--host", "127.0.0.1", f"--port={port}"), port, "--port")
    assert started == []


def cache_model(folder: Path, **config: object) -> None:
    """Put the configuration of some/model into a cache of the hub."""
    snapshot = folder / "models--some--model" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config))
    refs = folder / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)


def test_a_speculators_checkpoint_on_the_hub_is_its_own_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="needs vLLM: make setup")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    cache_model(tmp_path, speculators_config={}, speculators_model_type="eagle3")
    command = printed("some/model", "--download-dir", str(tmp_path))
    assert value_of(command, "--speculative-config") == {"method": "eagle3", "model": "some/model"}
    assert value_of(printed("some/model"), "--speculative-config")["method"] == "ngram_gpu"


def test_a_name_that_cannot_be_downloaded_is_one_line(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["some/model", "--port", free_port(), "--host", "127.0.0.1", "--download-dir", str(tmp_path)]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    one_line(run(*args), "some/model", "HF_HUB_OFFLINE")
    assert started == []
    cache_model(tmp_path)
    assert isinstance(run(*args).exception, Started)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert isinstance(run("other/model", *args[1:]).exception, Started), "vLLM may download it"


@pytest.mark.parametrize(
    ("stored", "flags", "dtype", "is_exact"),
    [
        ("bfloat16", [], "bfloat16", False),
        ("bfloat16", ["--dtype", "float32"], "float32", True),
        ("bfloat16", ["--dtype=float"], "float32", True),
        ("float32", [], "float16", False),  # auto converts float32
        ("float32", ["--dtype", "half"], "float16", False),
    ],
)
def test_the_summary_states_what_holds_in_the_dtype_served(
    started: list[Any], tmp_path: Path, stored: str, flags: list[str], dtype: str, is_exact: bool
) -> None:
    model = str(model_in(tmp_path / "m", dtype=stored))
    summary = " ".join(run(model, "--port", free_port(), "--host", "127.0.0.1", *flags).stderr.split())
    assert dtype in summary
    assert ("identical" in summary) == is_exact
    assert ("near-tie" not in summary) == is_exact


def test_the_help_states_what_holds_in_which_dtype() -> None:
    for args in (["--help"], ["serve", "--help"]):
        text = CliRunner().invoke(app, args).output
        assert {"float32", "bfloat16", "near-ties"} <= set(text.replace(",", " ").split())


def test_no_command_or_option_is_listed_twice() -> None:
    def check(command: Any, path: str) -> None:
        options = [option for each in command.params for option in each.opts]
        assert len(options) == len(set(options)), path
        helps = [each.get_short_help_str(400) for each in getattr(command, "commands", {}).values()]
        assert len(helps) == len(set(helps)), path
        for name, each in getattr(command, "commands", {}).items():
            check(each, f"{path} {name}")

    from typer.main import get_command

    check(get_command(app), "forerun")


def test_the_shell_completes_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        environment = {
            "_FORERUN_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        }
        result = CliRunner().invoke(app, [], prog_name="forerun", env=environment)
        return str(result.stdout).split()

    assert completed("forerun ser") == ["serve"]
    assert "--draft-model" in completed("forerun serve --d")


def test_the_doctor_reports_a_working_installation() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    findings = {each["what"]: each["outcome"] for each in json.loads(result.stdout)}
    assert result.exit_code == 0, findings
    assert findings["drafter: suffix"] == "fine"
    assert "broken" not in findings.values()


def test_the_doctor_states_the_runner_that_serve_will_use(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    from forerun.engines.vllm.runner_choice import choose_runner

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    result = CliRunner().invoke(app, ["doctor", "--json"])
    details = {each["what"]: each["detail"] for each in json.loads(result.stdout)}
    assert details["vLLM's model runner"] == choose_runner().summary
    assert "V2" in details["vLLM's model runner"]


def test_the_doctor_names_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyError("missing")

    monkeypatch.setattr("forerun.drafters.registry.make_drafters", fail)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "KeyError: 'missing'" in result.output


def test_the_doctor_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.doctor._version", lambda _: None)
    result = CliRunner().invoke(app, ["doctor"])
    assert "pip install" in result.output
    assert "[plots]" in result.output
