"""Results from records: known ratios, different output, systems that fail."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.bench.output_check import compare_outputs, first_difference, first_differences
from forerun.bench.record import BenchRecord, CaseKey, OutputRuling, RecordedAnswer, RecordWriter
from forerun.bench.report import (
    INVALID_MARK,
    UNDECIDED_MARK,
    findings,
    headline,
    losses,
    markdown,
    vllm_caption,
    write_page,
)
from forerun.bench.summary import OVERALL, geomean_ratio, inter_token_latencies, speedup_limit, summarise
from forerun.errors import ConfigurationError, UnreadableRecord

FACTS: dict[str, Any] = {
    "command": "forerun bench run",
    "machine": {"cpu": "a machine", "threads": 2},
    "workload": {
        "model": "tiny",
        "dtype": "bfloat16",
        "questions": ["0", "1", "2", "3"],
        "num_tokens": 32,
        "concurrencies": [1],
        "temperatures": [0.0],
    },
    "systems": {
        "vllm": {"baseline": "vllm", "precision": "bfloat16", "command": []},
        "forerun": {"baseline": "vllm", "precision": "bfloat16", "command": []},
        "llama.cpp": {"baseline": "llama.cpp", "precision": "Q4_1", "command": []},
    },
}


def case(number: int, temperature: float = 0.0, concurrency: int = 1) -> CaseKey:
    return CaseKey(0, temperature, concurrency, number, number, str(number), "chat" if number % 2 else "code")


def answer(
    system: str, at: CaseKey, *, pause: float, per_event: int = 1, num: int = 33, start: int = 0
) -> RecordedAnswer:
    """One token, then events of `per_event` tokens, `pause` seconds apart."""
    counts = [1, *[per_event] * ((num - 1) // per_event)]
    times = [0.5 + pause * step for step in range(len(counts))]
    return RecordedAnswer(
        at, system, 0.0, tuple(times), tuple(counts), sum(counts),
        tuple(range(start, start + sum(counts))), "",
        drafted_per_step=(per_event - 1,) * (len(counts) - 1),
        accepted_per_step=(per_event - 1,) * (len(counts) - 1),
    )  # fmt: skip


@pytest.fixture
def record() -> BenchRecord:
    """forerun emits four tokens per event where vLLM emits one, and an event takes a quarter longer."""
    found = BenchRecord(runs=[FACTS], costs={(0, False): {1: 0.02, 8: 0.025}})
    for number in range(4):
        slowdown = 1.0 + 0.5 * number  # of the machine, the same for all systems
        found.add(answer("vllm", case(number), pause=0.02 * slowdown))
        found.add(answer("forerun", case(number), pause=0.025 * slowdown, per_event=4))
        found.add(answer("llama.cpp", case(number), pause=0.005 * slowdown))
    return found


def test_a_speedup_compares_answers_to_the_same_question(record: BenchRecord) -> None:
    ours = next(each for each in summarise(record) if each.system == "forerun")
    assert ours.overall is not None
    for name in ("chat", "code", OVERALL):
        assert ours.by_category[name].speedup.value == pytest.approx(4 / 1.25)
    assert ours.overall.tokens_per_step == pytest.approx(4.0)
    assert ours.overall.draft_tokens_per_step == pytest.approx(3.0)
    assert ours.overall.survival == (1.0, 1.0, 1.0)
    assert ours.is_valid
    baseline = next(each for each in summarise(record) if each.system == "vllm")
    assert baseline.overall is not None
    assert baseline.overall.speedup.value == 1.0


def test_the_limit_is_theorem_38_with_the_cost_of_steps_with_more_rows(record: BenchRecord) -> None:
    ours = next(each for each in summarise(record) if each.system == "forerun").overall
    assert ours is not None
    cost = np.interp(4, [1, 8], [0.02, 0.025])
    assert ours.limit is not None
    assert ours.limit.value == pytest.approx(4 * 0.02 / cost)
    assert speedup_limit(answer("x", case(0), pause=1.0), None) is None


def test_the_limit_is_a_median_over_questions_like_the_speedup(record: BenchRecord) -> None:
    """One category has a high speedup, one has none. Without wasted rows the speedup equals the limit."""
    record.costs = {(0, False): {1: 0.02, 64: 0.02}}
    for number in range(4):
        per_event = 8 if number % 2 else 1
        record.add(answer("vllm", case(number), pause=0.02))
        record.add(answer("forerun", case(number), pause=0.02, per_event=per_event))
    ours = next(each for each in summarise(record) if each.system == "forerun").overall
    assert ours is not None
    assert ours.speedup.value == pytest.approx(8**0.5)
    assert ours.limit is not None
    assert ours.limit.value == pytest.approx(ours.speedup.value)
    assert ours.limit.low <= ours.limit.value <= ours.limit.high


RATIO = re.compile(r"(\d+\.\d\d) \[(\d+\.\d\d), (\d+\.\d\d)\]")


def ratios_in(text: str) -> list[tuple[float, float, float]]:
    """Every ratio of a text; each decimal number in it must be a ratio or a bound of its interval."""
    assert not re.search(r"\d\.\d", RATIO.sub("", text)), f"a ratio without its interval: {text}"
    return [(float(value), float(low), float(high)) for value, low, high in RATIO.findall(text)]


def with_ratios(ratios: Sequence[float]) -> BenchRecord:
    """A record in which forerun has these speedups over vLLM, one per question."""
    found = BenchRecord(
        runs=[FACTS | {"systems": {name: FACTS["systems"][name] for name in ("vllm", "forerun")}}]
    )
    for number, ratio in enumerate(ratios):
        found.add(answer("vllm", case(number), pause=0.02))
        found.add(answer("forerun", case(number), pause=0.02 / ratio))
    return found


def test_a_headline_whose_interval_contains_1_claims_no_difference() -> None:
    doubtful, clear = (
        summarise(with_ratios([0.8, 0.8, 1.5, 1.5])),
        summarise(with_ratios([1.4, 1.4, 1.5, 1.5])),
    )
    ((value, low, high),) = ratios_in(headline(doubtful))
    assert low < 1 < high
    assert low <= value <= high
    assert "no difference shown" in headline(doubtful)
    assert "no difference shown" in findings(doubtful)[0]
    ((_, low, _),) = ratios_in(headline(clear))
    assert low > 1
    assert "no difference shown" not in headline(clear) + findings(clear)[0]


def test_every_ratio_of_the_findings_has_its_interval_and_none_is_a_share_of_the_limit(
    record: BenchRecord,
) -> None:
    text = findings(summarise(record))
    assert len(ratios_in(text[0])) == 2, "the speedup and the estimated limit"
    assert "%" not in text[0]


def test_a_rival_whose_lead_is_within_the_interval_is_not_called_faster() -> None:
    found = with_ratios([1.0, 1.0, 1.0, 1.0])
    found.runs = [FACTS]
    for number, speed in enumerate((0.7, 1.5, 1.6, 1.4)):
        found.add(answer("llama.cpp", case(number), pause=0.02 / speed))
    (text,) = losses(summarise(found))
    faster, doubtful = text.split("no difference shown")
    assert [low > 1 for _, low, _ in ratios_in(faster)] == [True], "chat"
    assert [low < 1 for _, low, _ in ratios_in(doubtful)] == [True], "code"


def test_one_group_of_requests_has_no_interval(record: BenchRecord) -> None:
    found = BenchRecord(runs=[FACTS | {"workload": FACTS["workload"] | {"concurrencies": [4]}}])
    for number in range(4):
        at = replace(case(number, concurrency=4), group=0)
        for name, pause in (("vllm", 0.04), ("forerun", 0.02), ("llama.cpp", 0.01)):
            found.add(answer(name, at, pause=pause))
    (text,) = losses(summarise(found))
    assert "no interval" in text
    assert not RATIO.search(text)


def test_the_flags_of_vllm_are_in_the_caption_and_old_records_are_read(
    record: BenchRecord, tmp_path: Path
) -> None:
    assert "not recorded" in vllm_caption(record)
    command = [
        "python",
        "-m",
        "forerun.engines.vllm",
        "serve",
        "tiny",
        "--dtype",
        "float32",
        "--enforce-eager",
    ]
    systems = FACTS["systems"]
    old = FACTS | {"systems": systems | {"vllm": systems["vllm"] | {"command": command}}}
    record.runs = [old]
    assert vllm_caption(record).endswith("--dtype float32 --enforce-eager")
    settings = {"vllm_flags": ["--dtype", "float32"], "vllm_environment": {"VLLM_CPU_KVCACHE_SPACE": "1"}}
    record.runs = [old | settings]
    assert "vLLM flags: --dtype float32" in vllm_caption(record)
    assert "--enforce-eager" not in vllm_caption(record)
    assert "VLLM_CPU_KVCACHE_SPACE=1" in vllm_caption(record)
    write_page(record, tmp_path / "page.html")
    assert vllm_caption(record) in (tmp_path / "page.html").read_text()
    record.runs = [old, old | settings]
    assert vllm_caption(record).count("--dtype float32") == 2


def test_intervals_contain_the_ratio_and_grow_with_the_spread() -> None:
    random = np.random.default_rng(3)
    tight, loose = (np.exp(random.normal(np.log(2), spread, 40)) for spread in (0.01, 0.3))
    near, far = geomean_ratio([tight]), geomean_ratio([loose])
    assert near.low <= near.value <= near.high
    assert far.high - far.low > 5 * (near.high - near.low)


def test_speeds_of_a_slower_run_are_rescaled_by_the_shared_baseline(record: BenchRecord) -> None:
    """A system that runs with the same baseline has the same speed in either run."""
    alone = next(each for each in summarise(record) if each.system == "forerun").overall
    systems = FACTS["systems"]
    record.runs.append({**FACTS, "systems": {"vllm": systems["vllm"], "later": systems["forerun"]}})
    for number in range(4):
        at, slowdown = replace(case(number), run=1), 1.0 + 0.5 * number
        record.add(answer("vllm", at, pause=3 * 0.02 * slowdown))
        record.add(answer("later", at, pause=3 * 0.025 * slowdown, per_event=4))
    both = {each.system: each for each in summarise(record)}
    earlier, later = both["forerun"].overall, both["later"].overall
    assert alone is not None
    assert earlier is not None
    assert later is not None
    assert later.speed == pytest.approx(earlier.speed)
    assert earlier.speed != pytest.approx(alone.speed)


def test_tokens_of_one_event_have_no_latency_between_them() -> None:
    found = answer("x", case(0), pause=0.5, per_event=2, num=5)
    assert list(inter_token_latencies(found)) == [0.5, 0.0, 0.5, 0.0]


def test_systems_that_are_faster_than_forerun_are_listed(record: BenchRecord) -> None:
    (text,) = losses(summarise(record))
    assert "llama.cpp (Q4_1)" in text
    assert ratios_in(text) == [(1.25, 1.25, 1.25)] * 2
    wrong = sabotaged(record, "difference", "llama.cpp")
    assert any(f"llama.cpp (Q4_1) {INVALID_MARK}" in each for each in losses(summarise(wrong)))


def apart(record: BenchRecord, slowdown: float) -> BenchRecord:
    """The same answers in two runs: forerun in the first; in the second the machine has another speed."""
    names = {0: ("vllm", "forerun"), 1: ("vllm", "llama.cpp")}
    runs = [FACTS | {"systems": {name: FACTS["systems"][name] for name in names[run]}} for run in names]
    found = BenchRecord(runs=runs)
    for run, number in product(names, range(4)):
        at = replace(case(number), run=run)
        for name in names[run]:
            same = record.answers[case(number), name]
            times = tuple(each * (slowdown if run else 1.0) for each in same.times)
            found.add(replace(same, case=at, times=times))
    return found


@pytest.mark.parametrize("slowdown", [0.2, 1.0, 5.0])
def test_systems_of_different_runs_are_compared_through_the_shared_baseline(
    record: BenchRecord, slowdown: float
) -> None:
    (text,) = losses(summarise(apart(record, slowdown)))
    assert ratios_in(text) == [(1.25, 1.25, 1.25)] * 2


def test_a_system_without_the_shared_baseline_in_its_run_is_not_compared(record: BenchRecord) -> None:
    found = apart(record, 1.0)
    for number in range(4):
        del found.answers[replace(case(number), run=1), "vllm"]
    (text,) = losses(summarise(found))
    assert "llama.cpp" in text
    assert "not compared" in text
    assert ratios_in(text) == []


def test_above_concurrency_1_throughput_is_compared(record: BenchRecord) -> None:
    """llama.cpp serves one request after another: each decodes fast, but throughput is low."""
    found = BenchRecord(runs=[FACTS | {"workload": FACTS["workload"] | {"concurrencies": [4]}}])
    for number in range(4):
        at = replace(case(number, concurrency=4), group=0)
        found.add(answer("vllm", at, pause=0.04))
        found.add(answer("forerun", at, pause=0.02))
        slow = answer("llama.cpp", at, pause=0.01)
        found.add(replace(slow, times=tuple(each + number for each in slow.times)))
    results = summarise(found)
    assert not losses(results)
    rows = {line.split(" | ")[0].strip("|* "): line for line in markdown(results).splitlines()}
    assert "tok/s, all" in markdown(results)
    assert f"| {4 * 33 / (0.5 + 32 * 0.02):.1f} |" in rows["forerun"]
    assert f"| {4 * 33 / (3.5 + 32 * 0.01):.1f} |" in rows["llama.cpp"]


def test_the_first_difference_is_a_position_or_the_end_of_the_shorter_output() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2, 3), (1, 2)) == 2
    assert first_difference("abc", "abd") == 2


def sabotaged(record: BenchRecord, verdict: str, system: str = "forerun") -> BenchRecord:
    """The record with a changed answer of a system and the referee's verdict on it."""
    record = BenchRecord.merged([record])  # a copy
    changed = record.answers[case(0), system]
    record.add(replace(changed, token_ids=tuple(each + 100 for each in changed.token_ids)))
    if verdict != "undecided":
        gap = {"difference": 5.0, "near-tie": 0.1}[verdict]
        record.add(OutputRuling(case(0), system, 0, gap, 0.5))
    return record


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


def test_different_output_is_marked_at_every_speed_and_in_every_report(
    record: BenchRecord, tmp_path: Path
) -> None:
    wrong = sabotaged(record, "difference")
    results = summarise(wrong)
    (row,) = [line for line in markdown(results).splitlines() if "forerun" in line]
    assert row.count(INVALID_MARK) == 4  # every speed of the row
    assert "DIFFERENT" in row
    assert INVALID_MARK in headline(results)
    assert any("forerun" in each and "1 DIFFERENT" in each for each in findings(results)[1:])
    write_page(wrong, tmp_path / "page.html")
    assert "DIFFERENT" in (tmp_path / "page.html").read_text()
    assert INVALID_MARK not in markdown(summarise(record))  # no mark without a difference


def test_a_system_with_different_output_is_marked_at_every_setting(record: BenchRecord) -> None:
    record = sabotaged(record, "difference")
    record.runs = [FACTS | {"workload": FACTS["workload"] | {"temperatures": [0.0, 1.0]}}]
    for number in range(4):
        record.add(answer("vllm", case(number, 1.0), pause=0.02))
        record.add(answer("forerun", case(number, 1.0), pause=0.02))
    ours = [each for each in summarise(record) if each.system == "forerun"]
    assert [each.temperature for each in ours] == [0.0, 1.0]
    assert not any(each.is_valid for each in ours)


def test_undecided_differences_have_their_own_mark(record: BenchRecord) -> None:
    doubtful = summarise(sabotaged(record, "undecided"))
    (row,) = [line for line in markdown(doubtful).splitlines() if "forerun" in line]
    assert row.count(f" {UNDECIDED_MARK} ") == 4
    assert INVALID_MARK not in row


def test_a_system_with_an_error_is_marked_until_the_request_is_repeated(record: BenchRecord) -> None:
    record.add(RecordedAnswer(case(3), "forerun", error="the server's answer was cut off"))
    results = summarise(record)
    ours = next(each for each in results if each.system == "forerun")
    assert (ours.num_missing, ours.is_valid) == (1, False)
    assert INVALID_MARK in next(line for line in markdown(results).splitlines() if "forerun" in line)
    assert any("forerun" in each and ": 1 (" in each and "cut off" in each for each in findings(results))
    record.add(answer("forerun", case(3), pause=0.025, per_event=4))
    assert next(each for each in summarise(record) if each.system == "forerun").is_valid


def test_a_missing_answer_of_the_baseline_marks_both_systems(record: BenchRecord) -> None:
    del record.answers[case(3), "vllm"]  # forerun's speed is compared with it
    by_name = {each.system: each for each in summarise(record)}
    assert not by_name["vllm"].is_valid
    assert not by_name["forerun"].is_valid
    assert by_name["llama.cpp"].is_valid


def test_a_system_without_answers_has_a_row_without_speeds(record: BenchRecord) -> None:
    for number in range(4):
        del record.answers[case(number), "forerun"]
    record.add_row({"run": 0, "system": "forerun", "excluded": "it did not start"})
    results = summarise(record)
    (row,) = [line for line in markdown(results).splitlines() if "forerun" in line]
    assert INVALID_MARK in row
    assert not any(character.isdigit() for character in row.split("|")[2])
    assert any("it did not start" in each for each in findings(results))


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


def test_a_record_without_answers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRecord, match="no answer"):
        write_page(BenchRecord(runs=[FACTS]), tmp_path / "page.html")


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


def test_answers_with_steal_time_are_counted_in_the_findings(record: BenchRecord) -> None:
    assert not any("steal time" in each for each in findings(summarise(record)))
    record.add(replace(record.answers[case(1), "forerun"], steal_share=0.06))
    text = findings(summarise(record))[-1]
    assert "5% steal time" in text
    assert "1 of forerun" in text
