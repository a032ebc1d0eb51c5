"""Reports of results: sentences, tables and pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from forerun.bench.findings import findings, headline, losses
from forerun.bench.record import BenchRecord
from forerun.bench.recorded_answer import RecordedAnswer
from forerun.bench.report_page import write_page
from forerun.bench.report_tables import INVALID_MARK, UNDECIDED_MARK, markdown, vllm_caption
from forerun.bench.summary import summarise
from forerun.errors import UnreadableRecord
from unit.bench.made_records import FACTS, answer, case, sabotaged

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


@pytest.mark.parametrize(
    ("precision", "is_exact"), [("float32", True), ("bfloat16", False), ("as it is served", False)]
)
def test_the_findings_state_what_holds_in_the_precision(
    record: BenchRecord, precision: str, is_exact: bool
) -> None:
    systems = FACTS["systems"] | {"forerun": FACTS["systems"]["forerun"] | {"precision": precision}}
    record.runs = [FACTS | {"systems": systems}]
    (sentence,) = [each for each in findings(summarise(record)) if each.startswith("forerun, ")]
    assert ("identical" in sentence) == is_exact
    assert ("near-tie" in sentence) == (not is_exact)


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


def test_a_system_without_answers_has_a_row_without_speeds(record: BenchRecord) -> None:
    for number in range(4):
        del record.answers[case(number), "forerun"]
    record.add_row({"run": 0, "system": "forerun", "excluded": "it did not start"})
    results = summarise(record)
    (row,) = [line for line in markdown(results).splitlines() if "forerun" in line]
    assert INVALID_MARK in row
    assert not any(character.isdigit() for character in row.split("|")[2])
    assert any("it did not start" in each for each in findings(results))


def test_a_record_without_answers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRecord, match="no answer"):
        write_page(BenchRecord(runs=[FACTS]), tmp_path / "page.html")


def test_answers_with_steal_time_are_counted_in_the_findings(record: BenchRecord) -> None:
    assert not any("steal time" in each for each in findings(summarise(record)))
    record.add(replace(record.answers[case(1), "forerun"], steal_share=0.06))
    text = findings(summarise(record))[-1]
    assert "5% steal time" in text
    assert "1 of forerun" in text
