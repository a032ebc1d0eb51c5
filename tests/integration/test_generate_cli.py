"""`forerun generate`, `forerun.generate` and `LLM` on a tiny model, with a tokenizer of single characters."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

pytest.importorskip("transformers", reason="needs the extra `local`")

import forerun
from forerun import LLM, Draft, SpeculationConfig, Verdict
from forerun.cli.generate_output import answer
from forerun.cli.main import app
from forerun.control import cost_profiler
from forerun.engines.local import llm as local
from forerun.engines.local import startup
from forerun.engines.local.engine import Engine
from forerun.engines.local.request import Result as Output
from forerun.engines.local.request import Update
from forerun.errors import InvalidRequest, UnreadableModel
from forerun.models import loading
from forerun.models.invariant_runner import make_runner

CHARACTERS = "abcdef[-]{+}\\\n\t:"
"""One token each: letters, and every character of the marks of `--show`."""


def make_tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({each: i for i, each in enumerate(CHARACTERS)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def model(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def generate(model: Path, prompt: str, *flags: str) -> Result:
    return invoke("generate", model, "--prompt", prompt, *flags)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step costs of earlier runs; noisy timings of a tiny model do not make a curve provisional."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for limit in ("MAX_STEAL_SHARE", "MAX_OTHERS_SHARE", "MAX_SPREAD", "MAX_SHAPE_ERROR"):
        monkeypatch.setattr(cost_profiler, limit, math.inf)


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(CHARACTERS.index(each) for each in text)


class Scripted:
    """An `LLM` whose steps are given: draft tokens, how many of them are accepted, and the target's token."""

    def __init__(self, *steps: tuple[str, int, str]) -> None:
        self.tokenizer = make_tokenizer()
        self.invariant = False
        model = SimpleNamespace(dtype=torch.float32)
        self.engine = SimpleNamespace(
            target=SimpleNamespace(model=model), speculator=SimpleNamespace(drafters={"scripted": None})
        )
        self.steps = steps
        self.text = "".join(draft[:num] + own for draft, num, own in steps)

    def stream(self, *_: Any, **__: Any) -> Iterator[Update]:
        output = Output("0", self.text, tokens_of(self.text), "length")
        for number, (draft, num, own) in enumerate(self.steps, start=1):
            tokens = tokens_of(draft[:num] + own)
            yield Update(
                "0",
                tokens,
                draft[:num] + own,
                Draft.chain(tokens_of(draft)),
                Verdict(tuple(range(num)), tokens[-1]),
                output if number == len(self.steps) else None,
            )


def parse(marked: str) -> tuple[str, list[str]]:
    """The output and the rejected draft tokens of a marked text, by the rules of its legend."""
    output, rejected, inside, i = "", list[str](), "", 0
    while i < len(marked):
        two = marked[i : i + 2]
        if not inside and two in {"[-", "{+"}:
            inside, i = two, i + 2
            rejected += [""] if two == "[-" else []
            continue
        if (inside, two) in {("[-", "-]"), ("{+", "+}")}:
            inside, i = "", i + 2
            continue
        i += marked[i] == "\\"
        if inside == "[-":
            rejected[-1] += marked[i]
        else:
            output += marked[i]
        i += 1
    return output, rejected


STEPS = [
    ("abc", 3, "d"),
    ("abc", 1, "e"),
    ("[-]", 2, "-"),
    ("-]", 0, "]"),
    ("\\", 0, "+"),
    ("f", 1, "{"),
    ("+}[", 2, "-"),
    ("}\n", 1, "["),
    ("-", 1, "\\"),
]


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours_show_marks_rejected_tokens_so_that_the_output_can_be_recovered(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    llm: Any = Scripted(*STEPS)
    answer(llm, "a prompt", {}, None, show=True, as_json=False)
    legend, marked = capsys.readouterr().out.split("\n", 1)
    assert "[-" in legend
    assert "{+" in legend
    assert "\x1b" not in marked
    output, rejected = parse(marked.removesuffix("\n"))
    assert output == llm.text
    assert rejected == ["bc", "]", "-]", "\\", "[", "⏎"]
    assert marked.startswith("abc{+d+}a[-bc-]{+e+}")


def test_with_colours_show_writes_no_marks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    llm: Any = Scripted(("abc", 1, "e"))
    answer(llm, "a prompt", {}, None, show=True, as_json=False)
    shown = capsys.readouterr().out
    assert "[-" not in shown
    assert "\x1b[2;9;31mbc" in shown


@pytest.mark.parametrize("num_prompts", [1, 2])
def test_output_is_printed_verbatim(
    num_prompts: int, monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    """The console does not rewrite tabs, emoji names and trailing spaces."""
    text = "\tx :smile: [bold]   \n" * 8

    def stream(_: LLM, prompts: list[str], **__: Any) -> Iterator[Update]:
        for number in range(len(prompts)):
            yield Update(str(number), (1,), text, result=Output(str(number), text, (1,), "length"))

    monkeypatch.setattr(LLM, "stream", stream)
    done = invoke("generate", model, *("--prompt", "ab") * num_prompts, "--drafter", "none")
    assert done.exit_code == 0, done.output
    assert done.stdout.count(text) == num_prompts


def test_show_needs_a_tokenizer(tiny_llama: Any, tmp_path: Path) -> None:
    tiny_llama.save_pretrained(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [1, 2, 3]}) + "\n")
    done = invoke("generate", tmp_path / "model", "--prompts", prompts, "--show", "--drafter", "none")
    assert done.exit_code == 1
    assert "tokenizer" in done.stderr


@pytest.mark.parametrize(
    ("options", "expected", "unexpected"),
    [
        (["--dtype", "float32"], "identical", "near-tie"),
        (["--dtype", "float32", "--temperature", "1", "--seed", "3"], "identical", "near-tie"),
        (["--dtype", "float32", "--temperature", "1"], "distribution", "identical"),
        (["--dtype", "bfloat16"], "near-tie", "identical"),
        (["--dtype", "float16", "--temperature", "1", "--seed", "3"], "near-tie", "identical"),
        (["--dtype", "bfloat16", "--drafter", "none"], "non-speculative", "near-tie"),
    ],
)
def test_the_summary_states_what_holds_for_the_precision(
    model: Path, options: list[str], expected: str, unexpected: str
) -> None:
    done = generate(model, "abcabcab", "--max-tokens", "4", *options)
    assert done.exit_code == 0, done.output
    summary = done.stderr.splitlines()[-1]
    assert expected in summary
    assert unexpected not in summary
    assert options[1] in summary


@pytest.mark.parametrize(
    ("options", "dtype"), [([], "float32"), (["--dtype", "bfloat16"], "bfloat16")], ids=["default", "given"]
)
def test_the_default_dtype_on_a_cpu_without_bfloat16_is_announced_in_one_line(
    model: Path, options: list[str], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "has_bfloat16_instructions", lambda: False)
    loading.load_model(model, torch.bfloat16).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    done = generate(tmp_path, "abcabcab", "--max-tokens", "4", *options)
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert f"· {dtype}" in lines[-1]
    assert sum("bfloat16 instructions" in line for line in lines) == (not options)


def test_the_help_states_the_precision_that_identical_tokens_need() -> None:
    shown = invoke("generate", "--help").stdout
    assert "float32" in shown
    assert "near-ties" in " ".join(shown.split())
    for documented in (LLM, forerun.generate):
        assert "float32" in (documented.__doc__ or "")
        assert "bfloat16" in (documented.__doc__ or "")


def test_generate_takes_a_configuration(tiny_llama: Any) -> None:
    prompt = [[1, 2, 3, 1, 2, 3, 1, 2, 3, 1]]
    config = SpeculationConfig(drafters=("ngram",), adaptive=False, max_draft=3)
    (with_drafts,) = forerun.generate(tiny_llama, prompt, max_tokens=40, config=config)
    assert set(with_drafts.stats.by_drafter) == {"ngram"}
    assert 0 < with_drafts.stats.num_draft_tokens <= 3 * with_drafts.stats.num_steps
    none = SpeculationConfig(max_draft=0)
    (without,) = forerun.generate(tiny_llama, prompt, max_tokens=40, config=none)
    assert without.stats.num_draft_tokens == 0
    assert without.token_ids == with_drafts.token_ids
    llm = LLM(tiny_llama, config=config, max_batch=1, max_length=64)
    assert llm.engine.config == config
    assert llm.generate(prompt, max_tokens=40)[0].token_ids == without.token_ids


def test_the_command_reads_a_configuration_file(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "speculation.json"
    drafted = {}
    for max_draft in (0, 8):
        file.write_text(json.dumps({"adaptive": False, "max_draft": max_draft}))
        done = generate(model, "abcabcabc", "--max-tokens", "8", "--json", "--speculation", str(file))
        assert done.exit_code == 0, done.stderr
        drafted[max_draft] = json.loads(done.stdout)["stats"]["draft_tokens"]
    assert drafted[0] == 0 < drafted[8]
    file.write_text('{"max_drafts": 8}')
    refused = generate(model, "abc", "--speculation", str(file))
    assert refused.exit_code == 1
    assert "max_draft" in refused.stderr


@pytest.mark.parametrize("empty", ["", []])
def test_an_empty_prompt_of_a_file_fails_alone(model: Path, tmp_path: Path, empty: str | list[int]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in ("ab", empty, "cd")))
    done = invoke("generate", model, "--prompts", prompts, "--max-tokens", "2", "--drafter", "none", "--json")
    assert done.exit_code == 1
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["finish_reason"] == "error" for each in results] == [False, True, False]
    assert "prompt 2" in done.stderr


def test_the_remedy_for_a_long_prompt_works(model: Path) -> None:
    flags = ("--max-tokens", "2", "--drafter", "none")
    short = generate(model, "abcdef" * 5, *flags, "--max-length", "16")
    assert short.exit_code == 1
    assert "--max-length" in short.stderr
    assert generate(model, "abcdef" * 5, *flags, "--max-length", "64").exit_code == 0
    too_long = generate(model, "abcdef" * 50, "--drafter", "none")
    assert too_long.exit_code == 1
    assert "shorten" in too_long.stderr
    assert "max-length" not in too_long.stderr, "the model's own context length is 256 tokens"
    with pytest.raises(InvalidRequest, match="max_length"):
        forerun.generate(model, "abcdef" * 5, "none", max_length=16)
    assert forerun.generate(model, "abcdef" * 5, "none", max_length=64, max_tokens=2).error is None


def test_the_error_for_a_draft_model_without_a_tokenizer_names_its_directory(
    tiny_llama: Any, model: Path, tmp_path: Path
) -> None:
    tiny_llama.save_pretrained(tmp_path)
    with pytest.raises(UnreadableModel) as raised:
        LLM(model, f"model:{tmp_path}", max_batch=1, max_length=64)
    assert str(tmp_path) in str(raised.value)
    assert "token ids" not in str(raised.value)


def test_an_unwritable_trace_fails_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(local, "load_model", lambda *_: loaded.append("model"))
    done = invoke("generate", "MODEL", "--prompt", "x", "--trace", tmp_path / "missing" / "trace.jsonl")
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert str(tmp_path / "missing") in done.stderr
    assert loaded == []


def test_an_unwritable_page_fails_before_the_trace_is_read(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("not a trace\n")
    done = invoke("trace", tmp_path / "trace.jsonl", "-o", tmp_path / "missing" / "page.html")
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert str(tmp_path / "missing") in done.stderr
    assert "trace.jsonl" not in done.stderr


@pytest.mark.usefixtures("empty_cache")
def test_a_first_run_announces_its_profiling_on_standard_error_and_a_second_does_not(model: Path) -> None:
    first, second = (generate(model, "abcabcab", "--max-tokens", "2", "--dtype", "float32") for _ in range(2))
    assert first.exit_code == second.exit_code == 0, first.output
    assert "profiling step costs" in first.stderr
    assert "profil" not in second.stderr
    assert first.stdout == second.stdout


def test_compilation_is_announced_while_the_model_loads_and_while_it_decodes(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba

    def compiling(method: Any) -> Any:
        def wrapped(*args: Any, **given: Any) -> Any:
            def double(x: float) -> float:
                return 2 * x

            double.__module__ = "forerun.drafters.example"
            numba.njit(double)(1.0)  # not cached: compiled at every call
            return method(*args, **given)

        return wrapped

    flags = ("--max-tokens", "1", "--drafter", "none")
    assert "compil" not in generate(model, "abcabcab", *flags).stderr
    monkeypatch.setattr(local, "make_runner", compiling(make_runner))
    loading = generate(model, "abcabcab", *flags)
    assert loading.exit_code == 0, loading.output
    assert loading.stderr.count("compiled 1 kernel") == 1
    monkeypatch.setattr(Engine, "_forward", compiling(Engine._forward))
    both = generate(model, "abcabcab", *flags)
    assert both.stderr.count("compiled 1 kernel") == 2
    assert both.stdout == loading.stdout


@pytest.mark.usefixtures("empty_cache")
def test_the_library_logs_one_time_work_at_info(tiny_llama: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=startup.logger.name):
        LLM(tiny_llama, "ngram", max_batch=1, max_length=64)
    profiled = [record for record in caplog.records if "step costs" in record.message]
    assert [record.levelno for record in profiled] == [logging.INFO] * 2
    caplog.clear()
    with caplog.at_level(logging.INFO, logger=startup.logger.name):
        LLM(tiny_llama, "ngram", max_batch=1, max_length=64)
    assert caplog.records == []
