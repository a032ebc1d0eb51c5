"""Figures from records: ratios that are known, words that are wrong, contestants that fail."""

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
    DOUBTFUL,
    WRONG,
    findings,
    headline,
    losses,
    markdown,
    vllm_caption,
    write_page,
)
from forerun.bench.summary import ALL, gaps, limit, ratio_of, summarise
from forerun.errors import ConfigurationError, UnreadableRecord

FACTS: dict[str, Any] = {
    "command": "forerun bench run",
    "machine": {"cpu": "a machine", "threads": 2},
    "asked": {
        "model": "tiny",
        "dtype": "bfloat16",
        "questions": ["0", "1", "2", "3"],
        "num_tokens": 32,
        "widths": [1],
        "temperatures": [0.0],
    },
    "contestants": {
        "vllm": {"plain": "vllm", "precision": "bfloat16", "command": []},
        "forerun": {"plain": "vllm", "precision": "bfloat16", "command": []},
        "llama.cpp": {"plain": "llama.cpp", "precision": "Q4_1", "command": []},
    },
}


def place(number: int, temperature: float = 0.0, width: int = 1) -> CaseKey:
    return CaseKey(0, temperature, width, number, number, str(number), "chat" if number % 2 else "code")


def answer(
    who: str, at: CaseKey, *, pause: float, piece: int = 1, num: int = 33, start: int = 0
) -> RecordedAnswer:
    """Tokens in pieces of a size, the first alone, one piece a pause."""
    counts = [1, *[piece] * ((num - 1) // piece)]
    times = [0.5 + pause * step for step in range(len(counts))]
    return RecordedAnswer(
        at, who, 0.0, tuple(times), tuple(counts), sum(counts), tuple(range(start, start + sum(counts))), "",
        guessed=(piece - 1,) * (len(counts) - 1), stood=(piece - 1,) * (len(counts) - 1),
    )  # fmt: skip


@pytest.fixture
def record() -> BenchRecord:
    """forerun says pieces of four where vLLM says one, and takes a quarter longer for each."""
    found = BenchRecord(runs=[FACTS], costs={(0, False): {1: 0.02, 8: 0.025}})
    for number in range(4):
        mood = 1.0 + 0.5 * number  # the machine's, shared by all who are asked in turn
        found.keep(answer("vllm", place(number), pause=0.02 * mood))
        found.keep(answer("forerun", place(number), pause=0.025 * mood, piece=4))
        found.keep(answer("llama.cpp", place(number), pause=0.005 * mood))
    return found


def test_a_ratio_is_between_answers_to_the_same_question(record: BenchRecord) -> None:
    ours = next(each for each in summarise(record) if each.who == "forerun")
    assert ours.overall is not None
    for name in ("chat", "code", ALL):
        assert ours.by_category[name].over_plain.value == pytest.approx(4 / 1.25)
    assert ours.overall.tokens_per_step == pytest.approx(4.0)
    assert ours.overall.guesses_per_step == pytest.approx(3.0)
    assert ours.overall.survival == (1.0, 1.0, 1.0)
    assert ours.sound
    plain = next(each for each in summarise(record) if each.who == "vllm")
    assert plain.overall is not None
    assert plain.overall.over_plain.value == 1.0


def test_the_limit_is_theorem_38_with_the_cost_of_wider_passes(record: BenchRecord) -> None:
    ours = next(each for each in summarise(record) if each.who == "forerun").overall
    assert ours is not None
    cost = np.interp(4, [1, 8], [0.02, 0.025])
    assert ours.limit is not None
    assert ours.limit.value == pytest.approx(4 * 0.02 / cost)
    assert limit(answer("x", place(0), pause=1.0), None) is None


def test_the_limit_is_taken_question_by_question_as_the_ratio_is(record: BenchRecord) -> None:
    """A category that gains much and one that gains nothing: whoever wastes nothing is at the limit."""
    record.costs = {(0, False): {1: 0.02, 64: 0.02}}
    for number in range(4):
        piece = 8 if number % 2 else 1
        record.keep(answer("vllm", place(number), pause=0.02))
        record.keep(answer("forerun", place(number), pause=0.02, piece=piece))
    ours = next(each for each in summarise(record) if each.who == "forerun").overall
    assert ours is not None
    assert ours.over_plain.value == pytest.approx(8**0.5)
    assert ours.limit is not None
    assert ours.limit.value == pytest.approx(ours.over_plain.value)
    assert ours.limit.low <= ours.limit.value <= ours.limit.high


RATIO = re.compile(r"(\d+\.\d\d) \[(\d+\.\d\d), (\d+\.\d\d)\]")


def ratios_in(text: str) -> list[tuple[float, float, float]]:
    """Every ratio of a text; each decimal number in it has to be one, or an end of its interval."""
    assert not re.search(r"\d\.\d", RATIO.sub("", text)), f"a ratio without its interval: {text}"
    return [(float(value), float(low), float(high)) for value, low, high in RATIO.findall(text)]


def with_ratios(ratios: Sequence[float]) -> BenchRecord:
    """forerun is so many times as fast as vLLM, question by question."""
    found = BenchRecord(
        runs=[FACTS | {"contestants": {who: FACTS["contestants"][who] for who in ("vllm", "forerun")}}]
    )
    for number, ratio in enumerate(ratios):
        found.keep(answer("vllm", place(number), pause=0.02))
        found.keep(answer("forerun", place(number), pause=0.02 / ratio))
    return found


def test_a_headline_whose_interval_contains_1_says_that_no_difference_is_shown() -> None:
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
    told = findings(summarise(record))
    assert len(ratios_in(told[0])) == 2, "the speedup and the estimated limit"
    assert "%" not in told[0]


def test_a_rival_whose_lead_is_within_the_interval_is_not_called_faster() -> None:
    found = with_ratios([1.0, 1.0, 1.0, 1.0])
    found.runs = [FACTS]
    for number, speed in enumerate((0.7, 1.5, 1.6, 1.4)):
        found.keep(answer("llama.cpp", place(number), pause=0.02 / speed))
    (told,) = losses(summarise(found))
    faster, doubtful = told.split("no difference shown")
    assert [low > 1 for _, low, _ in ratios_in(faster)] == [True], "chat"
    assert [low < 1 for _, low, _ in ratios_in(doubtful)] == [True], "code"


def test_one_group_of_requests_has_no_interval(record: BenchRecord) -> None:
    found = BenchRecord(runs=[FACTS | {"asked": FACTS["asked"] | {"widths": [4]}}])
    for number in range(4):
        at = replace(place(number, width=4), group=0)
        for who, pause in (("vllm", 0.04), ("forerun", 0.02), ("llama.cpp", 0.01)):
            found.keep(answer(who, at, pause=pause))
    (told,) = losses(summarise(found))
    assert "no interval" in told
    assert not RATIO.search(told)


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
    they = FACTS["contestants"]
    old = FACTS | {"contestants": they | {"vllm": they["vllm"] | {"command": command}}}
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


def test_intervals_hold_the_ratio_and_grow_with_the_spread() -> None:
    random = np.random.default_rng(3)
    tight, loose = (np.exp(random.normal(np.log(2), spread, 40)) for spread in (0.01, 0.3))
    near, far = ratio_of([tight]), ratio_of([loose])
    assert near.low <= near.value <= near.high
    assert far.high - far.low > 5 * (near.high - near.low)


def test_who_ran_in_a_slower_hour_is_told_at_the_pace_of_all(record: BenchRecord) -> None:
    """The same contestant, beside the same plain one, has the same speed in whichever run."""
    alone = next(each for each in summarise(record) if each.who == "forerun").overall
    they = FACTS["contestants"]
    record.runs.append({**FACTS, "contestants": {"vllm": they["vllm"], "later": they["forerun"]}})
    for number in range(4):
        at, mood = replace(place(number), run=1), 1.0 + 0.5 * number
        record.keep(answer("vllm", at, pause=3 * 0.02 * mood))
        record.keep(answer("later", at, pause=3 * 0.025 * mood, piece=4))
    both = {each.who: each for each in summarise(record)}
    earlier, later = both["forerun"].overall, both["later"].overall
    assert alone is not None
    assert earlier is not None
    assert later is not None
    assert later.speed == pytest.approx(earlier.speed)
    assert earlier.speed != pytest.approx(alone.speed)


def test_tokens_that_come_together_wait_for_nothing() -> None:
    assert list(gaps(answer("x", place(0), pause=0.5, piece=2, num=5))) == [0.5, 0.0, 0.5, 0.0]


def test_the_page_and_the_table_say_where_forerun_loses(record: BenchRecord) -> None:
    (told,) = losses(summarise(record))
    assert "llama.cpp (Q4_1)" in told
    assert ratios_in(told) == [(1.25, 1.25, 1.25)] * 2
    wrong = sabotaged(record, "difference", "llama.cpp")
    assert any(f"llama.cpp (Q4_1) {WRONG}" in each for each in losses(summarise(wrong)))


def apart(record: BenchRecord, mood: float) -> BenchRecord:
    """The same in two runs; forerun is in the first, and in the second the machine is in another mood."""
    names = {0: ("vllm", "forerun"), 1: ("vllm", "llama.cpp")}
    runs = [FACTS | {"contestants": {who: FACTS["contestants"][who] for who in names[run]}} for run in names]
    found = BenchRecord(runs=runs)
    for run, number in product(names, range(4)):
        at = replace(place(number), run=run)
        for who in names[run]:
            same = record.answers[place(number), who]
            times = tuple(each * (mood if run else 1.0) for each in same.times)
            found.keep(replace(same, place=at, times=times))
    return found


@pytest.mark.parametrize("mood", [0.2, 1.0, 5.0])
def test_who_ran_in_another_hour_is_compared_by_way_of_the_plain_one(
    record: BenchRecord, mood: float
) -> None:
    (told,) = losses(summarise(apart(record, mood)))
    assert ratios_in(told) == [(1.25, 1.25, 1.25)] * 2


def test_who_never_ran_beside_the_plain_one_is_not_compared(record: BenchRecord) -> None:
    found = apart(record, 1.0)
    for number in range(4):
        del found.answers[replace(place(number), run=1), "vllm"]
    assert any("llama.cpp gave no answer beside vllm" in each for each in losses(summarise(found)))


def test_several_at_a_time_it_counts_what_all_get_together(record: BenchRecord) -> None:
    """llama.cpp answers one after the other: each is quick, and all together are slow."""
    found = BenchRecord(runs=[FACTS | {"asked": FACTS["asked"] | {"widths": [4]}}])
    for number in range(4):
        at = replace(place(number, width=4), group=0)
        found.keep(answer("vllm", at, pause=0.04))
        found.keep(answer("forerun", at, pause=0.02))
        slow = answer("llama.cpp", at, pause=0.01)
        found.keep(replace(slow, times=tuple(each + number for each in slow.times)))
    results = summarise(found)
    assert not losses(results)
    rows = {line.split(" | ")[0].strip("|* "): line for line in markdown(results).splitlines()}
    assert "tok/s, all" in markdown(results)
    assert f"| {4 * 33 / (0.5 + 32 * 0.02):.1f} |" in rows["forerun"]
    assert f"| {4 * 33 / (3.5 + 32 * 0.01):.1f} |" in rows["llama.cpp"]


def test_answers_part_at_the_first_token_that_differs() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2, 3), (1, 2)) == 2
    assert first_difference("abc", "abd") == 2


def sabotaged(record: BenchRecord, finding: str, who: str = "forerun") -> BenchRecord:
    """The record with an answer of somebody's that differs, and what the referee says of it."""
    record = BenchRecord.merged([record])  # a copy
    changed = record.answers[place(0), who]
    record.keep(replace(changed, token_ids=tuple(each + 100 for each in changed.token_ids)))
    if finding != "undecided":
        gap = {"difference": 5.0, "near-tie": 0.1}[finding]
        record.keep(OutputRuling(place(0), who, 0, gap, 0.5))
    return record


def test_words_are_counted(record: BenchRecord) -> None:
    assert compare_outputs(record, "forerun", 0.0, 1).told() == "all 4 the same"
    tie = compare_outputs(sabotaged(record, "near-tie"), "forerun", 0.0, 1)
    assert tie.honest
    assert tie.told() == "3 of 4 the same, 1 near-ties"
    wrong = compare_outputs(sabotaged(record, "difference"), "forerun", 0.0, 1)
    assert not wrong.honest
    assert "1 DIFFERENT" in wrong.told()


def test_partings_are_ruled_on_once(record: BenchRecord) -> None:
    assert not list(first_differences(sabotaged(record, "near-tie")))
    ((ruling, plain, mine),) = first_differences(sabotaged(record, "undecided"))
    assert (ruling.who, ruling.at, ruling.finding) == ("forerun", 0, "undecided")
    assert plain.words[0] != mine.words[0]


def test_a_failed_equality_check_never_looks_as_if_nothing_happened(
    record: BenchRecord, tmp_path: Path
) -> None:
    wrong = sabotaged(record, "difference")
    results = summarise(wrong)
    (row,) = [line for line in markdown(results).splitlines() if "forerun" in line]
    assert row.count(WRONG) == 4  # at every speed of it
    assert "DIFFERENT" in row
    assert "went wrong" in headline(results)
    assert any("does not say what vllm says" in each for each in findings(results))
    write_page(wrong, tmp_path / "page.html")
    assert "DIFFERENT" in (tmp_path / "page.html").read_text()
    assert WRONG not in markdown(summarise(record))  # and it is not there where all went well


def test_who_says_something_else_is_marked_at_every_setting(record: BenchRecord) -> None:
    record = sabotaged(record, "difference")
    record.runs = [FACTS | {"asked": FACTS["asked"] | {"temperatures": [0.0, 1.0]}}]
    for number in range(4):
        record.keep(answer("vllm", place(number, 1.0), pause=0.02))
        record.keep(answer("forerun", place(number, 1.0), pause=0.02))
    ours = [each for each in summarise(record) if each.who == "forerun"]
    assert [each.temperature for each in ours] == [0.0, 1.0]
    assert not any(each.sound for each in ours)


def test_what_nobody_could_decide_has_a_mark_of_its_own(record: BenchRecord) -> None:
    doubtful = summarise(sabotaged(record, "undecided"))
    (row,) = [line for line in markdown(doubtful).splitlines() if "forerun" in line]
    assert row.count(f" {DOUBTFUL} ") == 4
    assert WRONG not in row


def test_a_contestant_that_errs_half_way_is_marked(record: BenchRecord) -> None:
    record.keep(RecordedAnswer(place(3), "forerun", error="the server's answer was cut off"))
    results = summarise(record)
    ours = next(each for each in results if each.who == "forerun")
    assert (ours.num_missing, ours.sound) == (1, False)
    assert WRONG in next(line for line in markdown(results).splitlines() if "forerun" in line)
    assert any("1 answers are missing" in each and "cut off" in each for each in findings(results))
    record.keep(answer("forerun", place(3), pause=0.025, piece=4))  # asked again: all is well
    assert next(each for each in summarise(record) if each.who == "forerun").sound


def test_a_run_that_was_broken_off_is_marked(record: BenchRecord) -> None:
    del record.answers[place(3), "vllm"]  # which forerun's speed there is compared with
    by_name = {each.who: each for each in summarise(record)}
    assert not by_name["vllm"].sound
    assert not by_name["forerun"].sound
    assert by_name["llama.cpp"].sound


def test_who_never_answered_has_a_row_without_a_speed(record: BenchRecord) -> None:
    for number in range(4):
        del record.answers[place(number), "forerun"]
    record.take({"run": 0, "who": "forerun", "gave_up": "it did not start"})
    results = summarise(record)
    (row,) = [line for line in markdown(results).splitlines() if "forerun" in line]
    assert WRONG in row
    assert not any(character.isdigit() for character in row.split("|")[2])
    assert any("it did not start" in each for each in findings(results))


def test_an_answer_takes_the_place_of_an_earlier_one_and_of_its_ruling(record: BenchRecord) -> None:
    record = sabotaged(record, "near-tie")
    num = len(record.answers)
    record.keep(answer("forerun", place(0), pause=0.025, piece=4, start=200))
    assert len(record.answers) == num
    assert len(list(first_differences(record))) == 1


def test_drawn_words_are_not_judged(record: BenchRecord) -> None:
    record.keep(answer("vllm", place(0, 1.0), pause=0.02))
    record.keep(answer("forerun", place(0, 1.0), pause=0.02, start=9))
    assert not list(first_differences(record))
    assert compare_outputs(record, "forerun", 1.0, 1).told() == "0 of 1 the same by seed"


def test_a_record_is_read_as_it_was_written_and_goes_on(record: BenchRecord, tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    writer = RecordWriter(file, FACTS)
    answers = list(record.answers.values())[:5]
    answers[0] = replace(answers[0], token_ids=(), text="a\u2028b")  # which some call the end of a line
    for each in answers:
        writer.keep(each)
    writer.add({"run": 0, "drawn": False, "costs": {"1": 0.02}})
    writer.close()
    with file.open("a") as out:
        out.write('{"place": {"ru')  # the process died here
    again = RecordWriter(file, json.loads(json.dumps(FACTS)))
    assert again.resumed
    assert again.done() == {(each.place, each.who) for each in answers}
    assert list(again.record.answers.values()) == answers
    again.close()
    assert BenchRecord.read(file).costs == {(0, False): {1: 0.02}}


def test_a_run_goes_on_only_as_the_same_one(tmp_path: Path) -> None:
    file, facts = tmp_path / "bench.jsonl", FACTS | {"commit": "abc"}
    RecordWriter(file, facts).close()
    again = RecordWriter(file, facts | {"commit": "abc-dirty"})  # the record itself is what was changed
    assert again.resumed
    again.close()
    other = RecordWriter(file, facts | {"commit": "another"})
    assert not other.resumed
    assert (other.run, other.done()) == (1, set())
    other.close()
    before = file.read_text()
    with pytest.raises(ConfigurationError, match="differ in num_tokens"):
        RecordWriter(file, facts | {"asked": FACTS["asked"] | {"num_tokens": 8}})
    assert file.read_text() == before


def test_records_become_one_if_they_are_of_one_kind(record: BenchRecord) -> None:
    both = BenchRecord.merged([record, record])
    assert [each.place.run for each in both.answers.values()] == [0] * 12 + [1] * 12
    assert both.costs.keys() == {(0, False), (1, False)}
    other = replace(record, runs=[FACTS | {"asked": FACTS["asked"] | {"dtype": "float32"}}])
    with pytest.raises(ConfigurationError, match="differ in dtype"):
        BenchRecord.merged([record, other])


def test_a_record_without_answers_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRecord, match="no answer"):
        write_page(BenchRecord(runs=[FACTS]), tmp_path / "page.html")


def test_an_empty_record_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("\n")
    with pytest.raises(UnreadableRecord, match="empty"):
        BenchRecord.read(file)


def test_what_is_no_record_is_told(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("hello\nworld\n")
    with pytest.raises(UnreadableRecord, match="holds no record"):
        BenchRecord.read(file)


def test_disturbed_answers_are_told(record: BenchRecord) -> None:
    assert not any("others had" in each for each in findings(summarise(record)))
    record.keep(replace(record.answers[place(1), "forerun"], stolen=0.06))
    told = findings(summarise(record))[-1]
    assert told == "Greedy, 1 at a time: others had more than 5% of the machine during answers: 1 of forerun."
