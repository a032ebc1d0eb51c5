"""The suites of a benchmark."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from forerun.bench.suites import CODE_EDITING, SOURCE_LENGTHS, Question, read_suite
from forerun.errors import UnreadablePrompts


def test_spec_bench_files_are_read_by_group(tmp_path: Path) -> None:
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Write again."]},
        {"question_id": 82, "category": "stem", "turns": ["Explain."]},
        {"question_id": 1, "category": "math_reasoning", "turns": ["1 + 1?"]},
        {"question_id": 2, "category": "rag", "turns": ["Who?"]},
    ]
    file = tmp_path / "question.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    found = read_suite(str(file))
    assert [each.category for each in found] == ["mt-bench", "mt-bench", "math", "rag"]
    assert found[0] == Question("81", "mt-bench", "Write.")
    assert [each.id for each in read_suite(str(file), per_category=1)] == ["81", "1", "2"]


def test_the_first_user_message_of_a_conversation_is_the_prompt(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    turns = [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Hello"}]
    file.write_text(json.dumps([{"id": "x", "conversations": turns}, {"conversations": turns[:1]}]))
    assert read_suite(str(file)) == [Question("x", "sharegpt", "Hello")]


def test_each_line_of_a_text_file_is_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text('Say hello.\n\n{"text": "Say bye.", "cat": "short"}\n')
    assert read_suite(str(file)) == [Question("1", "mine", "Say hello."), Question("3", "short", "Say bye.")]


def test_code_editing_prompts_contain_whole_functions() -> None:
    found = read_suite(CODE_EDITING)
    assert len({each.id for each in found}) == len(found) >= 40
    for each in found:
        _, source, _ = each.text.split("```")
        assert len(source) - len("python\n\n") in SOURCE_LENGTHS
        (function,) = ast.parse(source.removeprefix("python\n")).body
        assert isinstance(function, ast.FunctionDef)
        named = function.args.posonlyargs + function.args.args
        assert f"`{named[0].arg}`" in each.text
        assert f"`new_{named[0].arg}`" in each.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no questions"),
        ('{"prompt": 3}\n', "line 1"),
        ('{"turns": [""]}\n', "not empty"),
        ("[1, 2]", "conversations"),
    ],
)
def test_a_file_that_is_not_a_suite_is_an_error(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(UnreadablePrompts, match=expected):
        read_suite(str(file))
    with pytest.raises(UnreadablePrompts, match=CODE_EDITING):
        read_suite(str(tmp_path / "missing.jsonl"))
