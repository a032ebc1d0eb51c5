"""`forerun generate` and `forerun.LLM` with the real model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forerun import LLM, Draft, Result
from forerun.cli.main import app
from forerun.errors import InvalidRequest, InvalidSampling, VocabularyMismatch
from forerun.types import RequestView, Verdict

pytestmark = pytest.mark.e2e

COUNT = "Count: one, two, three, one, two, three, one,"
FRANCE = "The capital of France is"


def forerun(
    *arguments: str | Path, given: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "forerun", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        input=given,
        env={**os.environ, **environment},
        timeout=300,
    )


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> LLM:
    return LLM(smollm2, "suffix,ngram", dtype="float32", max_batch=4, max_length=512)


def test_one_prompt_streams_and_the_summary_counts_tokens(smollm2: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    done = forerun("generate", smollm2, "-p", COUNT, "--max-tokens", "12", "--trace", trace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("two, three, one, two, three")
    assert "12 tokens in" in done.stderr
    assert "draft tokens accepted" in done.stderr
    page = tmp_path / "trace.html"
    written = forerun("trace", trace, "-o", page)
    assert written.returncode == 0, written.stderr
    assert "steps of 1 requests" in written.stdout
    assert '<span class="accepted"> two</span>' in page.read_text(encoding="utf-8")


def test_show_colours_draft_tokens(smollm2: Path) -> None:
    arguments = ["generate", str(smollm2), "--max-tokens", "40", "--show"]
    text = "The cat sat on the mat. The dog sat on the rug. The cat sat on the"
    done = forerun(*arguments, given=text, FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    for colour in ("\x1b[32m", "\x1b[1;34m", "\x1b[2;9;31m"):
        assert colour in done.stdout, colour


def test_many_prompts_and_json(smollm2: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": COUNT},
        {"prompt": [10**8]},
        {"prompt": [1, 2, 3]},
        {"turns": [FRANCE, "And of Spain?"]},
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = forerun(
        "generate",
        smollm2,
        "--prompts",
        prompts,
        "--max-tokens",
        "6",
        "--json",
        "--temperature",
        "1",
        "--seed",
        "3",
    )
    assert done.returncode == 1, "one prompt is invalid"
    results: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["finish_reason"] for each in results] == ["length", "error", "length", "length"]
    assert "token 100000000" in results[1]["error"]
    assert f"prompt 2: {results[1]['error']}" in done.stderr
    assert all(each["stats"]["tokens"] == 6 for each in results if "error" not in each)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "-p", "x"], "cannot load a"),
        (["MODEL", "-p", "x", "--drafter", "unknown"], "'unknown'"),
        (["MODEL", "-p", "x", "--temperature", "-1"], "temperature is -1"),
        (["MODEL", "-p", "x", "--dtype", "float7"], "'float7'"),
        (["MODEL", "-p", "x", "--device", "abacus"], "'abacus'"),
        (["MODEL", "-p", ""], "prompt is empty"),
    ],
)
def test_errors_are_one_line(smollm2: Path, arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(
        app, ["generate", *(str(smollm2) if each == "MODEL" else each for each in arguments)]
    )
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())
    assert isinstance(done.exception, SystemExit)


def test_a_list_returns_a_list_and_a_text_one_result(llm: LLM) -> None:
    results = llm.generate([COUNT, [{"role": "user", "content": "Say hello."}], [504, 3575]], max_tokens=5)
    assert [type(result) for result in results] == [Result] * 3
    assert all(len(result.token_ids) <= 5 for result in results)
    one = llm.generate(COUNT, max_tokens=5)
    assert one.token_ids == results[0].token_ids
    assert one.stats.by_drafter.keys() <= {"suffix", "ngram"}


def test_a_stop_text_can_span_tokens(llm: LLM) -> None:
    result = llm.generate(COUNT, max_tokens=40, stop=["e, tw"])
    assert result.finish_reason == "stop"
    assert result.text.endswith("on")
    assert "e, tw" not in result.text
    pieces = [update.text for update in llm.stream([COUNT], max_tokens=40, stop=["e, tw"])]
    assert "".join(pieces) == result.text


def test_invalid_settings_raise(llm: LLM) -> None:
    with pytest.raises(InvalidSampling, match="temperature is -1"):
        llm.generate(COUNT, temperature=-1)
    with pytest.raises(InvalidRequest, match="'maxtokens'"):
        llm.generate(COUNT, maxtokens=3)
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        llm.generate("")
    (result,) = llm.generate([COUNT], max_tokens=2)
    assert result.error is None


def test_a_closed_stream_frees_its_slots(llm: LLM) -> None:
    few: dict[str, Any] = {"max_tokens": 50, "max_draft": 4}  # otherwise one step may finish the output
    for update in llm.stream([COUNT, FRANCE], **few):
        assert update.result is None
        break
    (result,) = llm.generate([FRANCE], max_tokens=3)
    assert len(result.token_ids) == 3
    stream = llm.stream([COUNT], **few)
    next(stream)
    with pytest.raises(InvalidRequest, match="unfinished"):
        llm.generate(FRANCE, max_tokens=3)
    stream.close()
    assert llm.engine.target.cache.num_free == 4


class Silent:
    """A drafter without sources and estimates."""

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        import numpy as np

        drafts = []
        for view, budget in zip(views, budgets, strict=True):
            tokens = np.asarray(view.tokens[1 : budget + 1], dtype=np.int64)
            drafts.append(Draft(tokens, np.arange(-1, len(tokens) - 1), np.zeros(len(tokens), dtype=bool)))
        return drafts

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        pass

    def forget(self, id: str) -> None:
        pass


def test_a_custom_drafter_drafts_beside_others(smollm2: Path, llm: LLM) -> None:
    own = LLM(smollm2, [Silent(), "suffix"], dtype="float32", max_batch=1, max_length=512)
    result = own.generate(COUNT, max_tokens=16)
    assert result.token_ids == llm.generate(COUNT, max_tokens=16, max_draft=0).token_ids
    assert set(result.stats.by_drafter) <= {"Silent", "suffix"}
    assert own.engine.drafter_totals.errors.total() == 0


def test_a_draft_model_with_another_vocabulary_raises(smollm2: Path, tmp_path: Path) -> None:
    import shutil

    from e2e.engines import make_llamas

    _, draft = make_llamas(tmp_path, vocab_size=64, heads=4)
    for file in smollm2.glob("*token*"):
        shutil.copy(file, draft)
    table = draft / "tokenizer.json"
    content = json.loads(table.read_text())
    vocab = content["model"]["vocab"]
    first, second = "Ġthe", "Ġand"
    vocab[first], vocab[second] = vocab[second], vocab[first]
    table.write_text(json.dumps(content))
    with pytest.raises(VocabularyMismatch, match="same family"):
        LLM(smollm2, f"model:{draft}", max_batch=1, max_length=64)
    with pytest.raises(VocabularyMismatch, match="same family"):
        LLM(smollm2, f"model:{smollm2},model:{draft}", max_batch=1, max_length=64)
