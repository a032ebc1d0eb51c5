"""Results files: written, read back, resumed and merged; outputs compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.output_check import compare_outputs, first_difference, first_differences
from forerun.bench.record import BenchRecord
from forerun.bench.record_writer import RecordWriter
from forerun.bench.recorded_answer import CaseKey, OutputRuling, RecordedAnswer
from forerun.errors import ConfigurationError, UnreadableRecord
from unit.bench.made_records import FACTS, answer, case, sabotaged


def test_the_first_difference_is_a_position_or_the_end_of_the_shorter_output() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2, 3), (1, 2)) == 2
    assert first_difference("abc", "abd") == 2


def test_identical_outputs_near_ties_and_differences_are_counted(record: BenchRecord) -> None:
    assert compare_outputs(record, "forerun", 0.0, 1).summary() == "4/4 identical"
    tie = compare_outputs(sabotaged(record, "near-tie"), "forerun", 0.0, 1)
    assert tie.passed
    assert tie.summary() == "3/4 identical, 1 near-ties"
    wrong = compare_outputs(sabotaged(record, "difference"), "forerun", 0.0, 1)
    assert not wrong.passed
    assert "1 DIFFERENT" in wrong.summary()


def test_each_difference_is_classified_once(record: BenchRecord) -> None:
    assert not list(first_differences(sabotaged(record, "near-tie")))
    ((ruling, baseline, other),) = first_differences(sabotaged(record, "undecided"))
    assert (ruling.system, ruling.position, ruling.verdict) == ("forerun", 0, "undecided")
    assert baseline.output[0] != other.output[0]


def test_an_answer_replaces_an_earlier_one_and_its_ruling(record: BenchRecord) -> None:
    record = sabotaged(record, "near-tie")
    num = len(record.answers)
    record.add(answer("forerun", case(0), pause=0.025, per_event=4, start=200))
    assert len(record.answers) == num
    assert len(list(first_differences(record))) == 1


def test_sampled_outputs_have_no_verdict(record: BenchRecord) -> None:
    record.add(answer("vllm", case(0, 1.0), pause=0.02))
    record.add(answer("forerun", case(0, 1.0), pause=0.02, start=9))
    assert not list(first_differences(record))
    assert compare_outputs(record, "forerun", 1.0, 1).summary() == "0/1 identical by seed"


def test_a_record_is_read_as_written_and_resumed(record: BenchRecord, tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    writer = RecordWriter(file, FACTS)
    answers = list(record.answers.values())[:5]
    answers[0] = replace(answers[0], token_ids=(), text="a\u2028b")  # a line separator for str.splitlines
    for each in answers:
        writer.add(each)
    writer.add_costs({1: 0.02}, sampled=False)
    writer.close()
    with file.open("a") as out:
        out.write('{"case": {"ru')  # the process died here
    again = RecordWriter(file, json.loads(json.dumps(FACTS)))
    assert again.resumed
    assert again.completed() == {(each.case, each.system) for each in answers}
    assert list(again.record.answers.values()) == answers
    again.close()
    assert BenchRecord.read(file).costs == {(0, False): {1: 0.02}}


OLD_SYSTEM = {"plain": "plain", "precision": "bfloat16", "command": []}
OLD_CASE = {
    "run": 0, "temperature": 0.0, "width": 1, "group": 0, "number": 0, "question": "0", "category": "code"
}  # fmt: skip
OLD_WORKLOAD = {
    "model": "tiny", "dtype": "bfloat16", "questions": ["0"], "num_tokens": 32, "widths": [1],
    "temperatures": [0.0],
}  # fmt: skip
OLD_ROWS: list[dict[str, Any]] = [
    {"facts": {"asked": OLD_WORKLOAD, "contestants": {"plain": OLD_SYSTEM, "who": OLD_SYSTEM}}},
    {"run": 0, "drawn": True, "costs": {"1": 0.02}},
    {
        "place": OLD_CASE, "who": "who", "sent": 0.0, "times": [0.5, 0.6], "counts": [1, 3], "num_tokens": 4,
        "token_ids": [1, 2, 3, 4], "text": "", "guessed": [2], "stood": [1], "error": "", "stolen": 0.25,
    },
    {"place": OLD_CASE, "who": "who", "at": 2, "gap": 0.1, "bound": 0.5},
    {"run": 0, "who": "plain", "gave_up": "out of memory"},
]  # fmt: skip
"""The rows of a results file with the key names of 0.1; its systems are named like two of these keys."""


def test_records_with_old_key_names_are_read(tmp_path: Path) -> None:
    file = tmp_path / "old.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in OLD_ROWS))
    found = BenchRecord.read(file)
    at = CaseKey(0, 0.0, 1, 0, 0, "0", "code")
    assert found.answers == {
        (at, "who"): RecordedAnswer(
            at, "who", 0.0, (0.5, 0.6), (1, 3), 4, (1, 2, 3, 4), "", (2,), (1,), steal_share=0.25
        )
    }
    assert found.rulings == {(at, "who"): OutputRuling(at, "who", 2, 0.1, 0.5)}
    assert found.costs == {(0, True): {1: 0.02}}
    assert found.excluded == {(0, "plain"): "out of memory"}
    assert found.settings() == [(0.0, 1)]
    assert {name: facts["baseline"] for name, facts in found.systems().items()} == {
        "plain": "plain",
        "who": "plain",
    }


def test_only_the_same_run_is_resumed(tmp_path: Path) -> None:
    file, facts = tmp_path / "bench.jsonl", FACTS | {"commit": "abc"}
    RecordWriter(file, facts).close()
    again = RecordWriter(file, facts | {"commit": "abc-dirty"})  # the record itself changes the tree
    assert again.resumed
    again.close()
    other = RecordWriter(file, facts | {"commit": "another"})
    assert not other.resumed
    assert (other.run, other.completed()) == (1, set())
    other.close()
    before = file.read_text()
    with pytest.raises(ConfigurationError, match="num_tokens"):
        RecordWriter(file, facts | {"workload": FACTS["workload"] | {"num_tokens": 8}})
    assert file.read_text() == before


def test_records_merge_if_their_settings_match(record: BenchRecord) -> None:
    both = BenchRecord.merged([record, record])
    assert [each.case.run for each in both.answers.values()] == [0] * 12 + [1] * 12
    assert both.costs.keys() == {(0, False), (1, False)}
    other = replace(record, runs=[FACTS | {"workload": FACTS["workload"] | {"dtype": "float32"}}])
    with pytest.raises(ConfigurationError, match="dtype"):
        BenchRecord.merged([record, other])


def test_an_empty_record_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("\n")
    with pytest.raises(UnreadableRecord, match="empty"):
        BenchRecord.read(file)


def test_a_file_that_is_not_a_record_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("hello\nworld\n")
    with pytest.raises(UnreadableRecord, match=file.name):
        BenchRecord.read(file)
