"""The suites of a benchmark."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from forerun.bench.suites import CODE_EDITING, SOURCE_LENGTHS, Question, read_suite


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
