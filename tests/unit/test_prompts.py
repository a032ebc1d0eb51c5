"""Files of prompts: every command reads the same formats and reports the same errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.audit.prompts import DEFAULT_PROMPTS, read_prompts
from forerun.bench.suites import CODE_EDITING, read_suite
from forerun.errors import UnreadablePrompts
from forerun.prompts import SHAREGPT, FilePrompt, read_prompt_file

TURNS = [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Hello"}]

FILES = {
    "lines.jsonl": '{"prompt": "one"}\n\n{"turns": ["two", "again"]}\n{"text": "three"}\nfour\n',
    "text.txt": "[INST] one\ntwo\n[three\nfour\n",
    "spec_bench.jsonl": '{"question_id": 81, "category": "writing", "turns": ["one"]}\n',
    "sharegpt.json": json.dumps([{"id": "x", "conversations": TURNS}, {"conversations": TURNS[:1]}]),
}

Read = Callable[[Path], list[str]]

READERS: dict[str, Read] = {
    "generate": lambda file: [each.text for each in read_prompt_file(file, allow_empty=True)],
    "audit": lambda file: [each.text for each in read_prompts(file)],
    "bench and tune": lambda file: [each.text for each in read_suite(str(file))],
}


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("lines.jsonl", ["one", "two", "three", "four"]),
        ("text.txt", ["[INST] one", "two", "[three", "four"]),
        ("spec_bench.jsonl", ["one"]),
        ("sharegpt.json", ["Hello"]),
    ],
)
def test_every_command_reads_every_format(tmp_path: Path, reader: str, name: str, texts: list[str]) -> None:
    assert READERS[reader](written(tmp_path, name, FILES[name])) == texts


def test_a_prompt_has_an_id_and_a_category(tmp_path: Path) -> None:
    assert read_prompt_file(written(tmp_path, "mine.txt", 'a\n\n{"text": "b", "cat": "short"}\n')) == [
        FilePrompt("1", "mine", "a"),
        FilePrompt("3", "short", "b"),
    ]
    name = "spec_bench.jsonl"
    assert read_prompt_file(written(tmp_path, name, FILES[name])) == [FilePrompt("81", "writing", "one")]
    name = "sharegpt.json"
    assert read_prompt_file(written(tmp_path, name, FILES[name])) == [FilePrompt("x", SHAREGPT, "Hello")]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "\n", "no prompts"),
        ("a.jsonl", '{"prompt": 3}\n', "line 1"),
        ("a.jsonl", 'text\n{"prompt": [1, "x"]}\n', "line 2.*token ids"),
        ("a.jsonl", '{"turns": []}\n', "line 1"),
        ("a.jsonl", '{"question": "x"}\n', "line 1.*`prompt`"),
        ("a.jsonl", "[1, 2]", "conversations"),
        ("a.json", "[{", "not valid JSON"),
    ],
)
def test_every_command_reports_the_same_errors(
    tmp_path: Path, reader: str, name: str, text: str, expected: str
) -> None:
    file = written(tmp_path, name, text)
    with pytest.raises(UnreadablePrompts, match=expected):
        READERS[reader](file)


@pytest.mark.parametrize("empty", ["", " ", []])
def test_an_empty_prompt_is_an_error_except_where_it_fails_alone(
    tmp_path: Path, empty: str | list[int]
) -> None:
    file = written(tmp_path, "a.jsonl", json.dumps({"prompt": empty}) + "\n")
    assert len(READERS["generate"](file)) == 1
    for reader in ("audit", "bench and tune"):
        with pytest.raises(UnreadablePrompts, match=r"line 1.*empty"):
            READERS[reader](file)


def test_token_ids_are_a_prompt_where_no_chat_template_is_applied(tmp_path: Path) -> None:
    file = written(tmp_path, "a.jsonl", '{"prompt": [1, 2]}\n')
    assert read_prompt_file(file)[0].ids == read_prompts(file)[0].ids == (1, 2)
    with pytest.raises(UnreadablePrompts, match="token ids"):
        read_suite(str(file))


def test_an_audit_uses_the_first_prompts_of_a_file_or_the_built_in_ones(tmp_path: Path) -> None:
    file = written(tmp_path, "text.txt", FILES["text.txt"])
    assert [each.text for each in read_prompts(file, 2)] == ["[INST] one", "two"]
    assert [each.text for each in read_prompts(None)] == list(DEFAULT_PROMPTS)
    assert len(read_prompts(None, 1)) == 1


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    for read in READERS.values():
        with pytest.raises(UnreadablePrompts, match=r"nowhere\.jsonl"):
            read(tmp_path / "nowhere.jsonl")
    with pytest.raises(UnreadablePrompts, match=CODE_EDITING):
        read_suite(str(tmp_path / "nowhere.jsonl"))
