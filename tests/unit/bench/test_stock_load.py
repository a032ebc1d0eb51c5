"""Load against stock vLLM: cells, turns, alternation, the record and its continuation, with a fake client."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.bench import stock_load_run
from forerun.bench.client_results import ClientResult
from forerun.bench.recorded_answer import MAX_STEAL_SHARE
from forerun.bench.stock_load import CAPACITY_LOAD, LOADS, ClientLoad, LoadCell, capacity_cell, plan_cells
from forerun.bench.stock_load_client import ClientTurn, choose_prompts, client_arguments, write_prompts
from forerun.bench.stock_load_record import StockLoadRecord
from forerun.bench.stock_load_run import (
    TurnSettings,
    check_complete,
    measure_alternation,
    missing_alternations,
)
from forerun.control.machine_load import CpuTicks
from forerun.errors import ConfigurationError, ServerFailed, UnreadableRecord

CLOSED_8 = LoadCell("float32", "chat", 0.0, ClientLoad("closed", 8))
OPEN_HALF = replace(CLOSED_8, load=ClientLoad("open", 0.5))
SETTINGS = TurnSettings(max_tokens=64, num_prompts={}, idle_seconds=0.0)
FACTS = {"model": "tiny", "max_tokens": 64, "questions": "q", "vllm_environment": {}}


class FakeClient:
    """Completes every request; forerun at twice the speed of stock."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, ClientTurn]] = []

    def __call__(self, system: str, turn: ClientTurn) -> ClientResult:
        self.turns.append((system, turn))
        speed = 2.0 if system == "forerun" else 1.0
        num = turn.num_prompts
        return ClientResult(
            turn.request_rate, None, num, 0, num / speed, num * 10, 10.0 * speed, 4.0 * speed,
            itl_p99=50.0 / speed, output_digests=tuple(f"{turn.seed}-{each}" for each in range(num)),
        )  # fmt: skip


def measured(cells: dict[LoadCell, int], client: FakeClient) -> StockLoadRecord:
    record = StockLoadRecord(runs=[{"settings": FACTS}])
    for cell, num in cells.items():
        for _ in range(num):
            record.add(cell, measure_alternation(cell, record, client, SETTINGS))
    return record


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], None]:
    """Sets the steal shares of the next turns; it is 0 afterwards."""
    shares: list[float] = []

    class FakeTicks(CpuTicks):
        @classmethod
        def now(cls) -> CpuTicks:
            return FakeTicks(0, 0)

        def steal_share_since(self, before: CpuTicks) -> float:
            return shares.pop(0) if shares else 0.0

    monkeypatch.setattr(stock_load_run, "CpuTicks", FakeTicks)
    return shares.extend


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_a_load_is_parsed_from_its_name_with_a_space_or_a_hyphen(load: ClientLoad) -> None:
    assert ClientLoad.parse(str(load)) == load
    assert ClientLoad.parse(str(load).replace(" ", "-")) == load


@pytest.mark.parametrize(
    "given", ["", "closed", "closed 0", "closed 1.5", "open 0", "half-open 1", "open 80%"]
)
def test_an_invalid_load_is_rejected(given: str) -> None:
    with pytest.raises(ConfigurationError, match="got the load"):
        ClientLoad.parse(given)


def test_an_unknown_text_is_rejected_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'random'"):
        replace(CLOSED_8, text="randon")


def test_closed_loads_are_measured_before_open_ones() -> None:
    cells = plan_cells("float32", ["chat", "random"], [0.0, 1.0], [LOADS[-1], CAPACITY_LOAD, LOADS[0]])
    assert [(cell.temperature, cell.text) for cell in cells[::3]] == [
        (0.0, "chat"), (0.0, "random"), (1.0, "chat"), (1.0, "random")
    ]  # fmt: skip
    assert [str(cell.load) for cell in cells[:3]] == ["closed 32", "closed 1", "open 0.95"]


def test_the_seed_differs_between_cells_alternations_and_attempts() -> None:
    seeds = {
        cell.seed(alternation, attempt)
        for cell in plan_cells("float32", ["chat", "random"], [0.0, 1.0], LOADS)
        for alternation in range(5)
        for attempt in range(2)
    }
    assert len(seeds) == 2 * 2 * len(LOADS) * 5 * 2
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_both_systems_run_the_same_turn_in_an_alternation_and_another_in_the_next() -> None:
    client = FakeClient()
    measured({CLOSED_8: 2}, client)
    turns = [turn for _, turn in client.turns]
    assert turns[0] == turns[1] != turns[2] == turns[3]
    assert [{name for name, _ in client.turns[at : at + 2]} for at in (0, 2)] == [{"vllm", "forerun"}] * 2


def test_the_order_of_systems_varies_between_alternations() -> None:
    record = measured({CLOSED_8: 12}, FakeClient())
    assert {each.order for each in record.cells[CLOSED_8]} == {("vllm", "forerun"), ("forerun", "vllm")}


def test_a_disturbed_alternation_is_repeated_for_both_systems_with_new_prompts(
    ticks: Callable[[list[float]], None],
) -> None:
    ticks([0.0, 0.2, 0.01, MAX_STEAL_SHARE])
    client = FakeClient()
    record = measured({CLOSED_8: 1}, client)
    assert len(client.turns) == 4
    assert client.turns[0][1].seed != client.turns[2][1].seed
    (kept,) = record.cells[CLOSED_8]
    assert kept.seed == client.turns[2][1].seed
    assert sorted(kept.steal_shares.values()) == [0.01, MAX_STEAL_SHARE]


def test_the_least_disturbed_attempt_is_kept_after_the_last(ticks: Callable[[list[float]], None]) -> None:
    ticks([0.1, 0.1, 0.3, 0.0])
    client = FakeClient()
    record = measured({CLOSED_8: 1}, client)
    assert len(client.turns) == 2 * SETTINGS.max_attempts
    assert record.cells[CLOSED_8][0].seed == client.turns[0][1].seed


def test_a_failed_request_ends_the_measurement_with_its_error() -> None:
    turn = SETTINGS.turn(CLOSED_8, 0, None)
    complete = FakeClient()("vllm", turn)
    assert check_complete(complete, turn, "vllm") is complete
    failed = replace(complete, num_completed=23, num_failed=1, error="Traceback\n  ...\nServerDisconnected\n")
    with pytest.raises(ServerFailed, match=r"23 of 24 requests of .*closed 8: ServerDisconnected$"):
        check_complete(failed, turn, "vllm")
    with pytest.raises(ServerFailed, match="23 of 24"):
        check_complete(replace(complete, num_completed=23), turn, "vllm")


def test_an_open_load_has_a_share_of_stocks_capacity_in_every_alternation() -> None:
    client = FakeClient()
    record = measured({capacity_cell(OPEN_HALF): 1, OPEN_HALF: 2}, client)
    rates = {turn.request_rate for _, turn in client.turns if turn.cell == OPEN_HALF}
    assert rates == {0.5 * 4.0}
    faster = replace(record.cells[capacity_cell(OPEN_HALF)][0].results["vllm"], request_throughput=9.0)
    record.cells[capacity_cell(OPEN_HALF)][0].results["vllm"] = faster
    assert record.capacity(OPEN_HALF) == 4.0, "the rate is kept"


def test_an_open_load_without_a_capacity_has_its_closed_load_measured_first() -> None:
    record = StockLoadRecord(runs=[{"settings": FACTS}])
    assert missing_alternations([OPEN_HALF], record, 5) == {capacity_cell(OPEN_HALF): 1, OPEN_HALF: 5}
    assert next(iter(missing_alternations([OPEN_HALF], record, 5))) == capacity_cell(OPEN_HALF)
    with pytest.raises(ValueError, match="closed 32"):
        SETTINGS.turn(OPEN_HALF, 0, record.capacity(OPEN_HALF))


def test_only_missing_alternations_are_planned() -> None:
    record = measured({CLOSED_8: 2, capacity_cell(CLOSED_8): 5}, FakeClient())
    cells = [CLOSED_8, capacity_cell(CLOSED_8), OPEN_HALF]
    assert missing_alternations(cells, record, 5) == {CLOSED_8: 3, OPEN_HALF: 5}
    assert missing_alternations(cells[:2], record, 2) == {}


def test_a_record_is_continued_where_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    client = FakeClient()
    before = measured({CLOSED_8: 1, capacity_cell(CLOSED_8): 1}, client)
    before.write(file)
    after = StockLoadRecord.read(file)
    assert after == before
    measure_alternation(CLOSED_8, after, client, SETTINGS)
    assert client.turns[-1][1].seed == CLOSED_8.seed(1)
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


def test_an_entry_of_the_record_has_medians_ratios_and_identical_outputs(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    measured({CLOSED_8: 5}, FakeClient()).write(file)
    (entry,) = json.loads(file.read_text())["cells"]
    assert (entry["dtype"], entry["text"], entry["temperature"], entry["load"]) == (
        "float32", "chat", 0.0, "closed 8"
    )  # fmt: skip
    assert entry["stock"]["throughput"] == 10.0
    assert entry["ratios"]["throughput"] == {
        "value": pytest.approx(2),
        "low": pytest.approx(2),
        "high": pytest.approx(2),
    }
    assert entry["ratios"]["itl_p99"]["value"] == pytest.approx(0.5)
    assert entry["num_identical"] == entry["num_outputs"] == 5 * 24
    assert len(entry["turns"]) == 5


def test_a_damaged_record_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text('{"runs": []}')
    with pytest.raises(UnreadableRecord, match="bench-stock-load"):
        StockLoadRecord.read(file)


def test_a_cell_is_not_continued_with_other_settings() -> None:
    record = measured({CLOSED_8: 1}, FakeClient())
    record.check_settings(CLOSED_8, FACTS)
    record.check_settings(OPEN_HALF, FACTS | {"max_tokens": 128})
    with pytest.raises(ConfigurationError, match=r"max_tokens 64, got 128.*--replace"):
        record.check_settings(CLOSED_8, FACTS | {"max_tokens": 128})
    record.drop(CLOSED_8)
    record.check_settings(CLOSED_8, FACTS | {"max_tokens": 128})


def test_dropping_the_capacity_cell_drops_the_capacity() -> None:
    record = measured({capacity_cell(CLOSED_8): 1}, FakeClient())
    assert record.capacity(OPEN_HALF) == 4.0
    record.drop(CLOSED_8)
    assert record.capacity(OPEN_HALF) == 4.0
    record.drop(capacity_cell(CLOSED_8))
    assert record.capacity(OPEN_HALF) is None


def arguments_of(turn: ClientTurn) -> dict[str, str]:
    """The client's options with their values; flags have none."""
    given = client_arguments(turn, Path("model"), Path("prompts.json"), Path("result.json"))
    return {
        one: "" if two.startswith("--") else two
        for one, two in zip(given, [*given[1:], "--"], strict=True)
        if one.startswith("--")
    }


def test_a_closed_load_limits_concurrency_and_an_open_one_has_poisson_arrivals() -> None:
    closed, opened = (arguments_of(SETTINGS.turn(cell, 7, 3.0)) for cell in (CLOSED_8, OPEN_HALF))
    assert closed["--max-concurrency"] == "8"
    assert "--request-rate" not in closed
    assert (opened["--request-rate"], opened["--burstiness"]) == ("1.5", "1")
    assert "--max-concurrency" not in opened


def test_sampled_requests_have_the_seed_of_the_turn_and_greedy_ones_have_none() -> None:
    greedy = arguments_of(SETTINGS.turn(CLOSED_8, 7, None))
    sampled = arguments_of(SETTINGS.turn(replace(CLOSED_8, temperature=1.0), 7, None))
    assert greedy["--temperature"] == "0"
    assert "--extra-body" not in greedy
    assert (sampled["--temperature"], json.loads(sampled["--extra-body"])) == ("1", {"seed": 7})


def test_random_text_comes_from_the_client_and_the_others_from_the_file_in_its_order() -> None:
    chat = arguments_of(SETTINGS.turn(CLOSED_8, 7, None))
    random = arguments_of(SETTINGS.turn(replace(CLOSED_8, text="random"), 7, None))
    assert (random["--dataset-name"], random["--random-output-len"]) == ("random", "64")
    assert "--dataset-path" not in random
    assert (chat["--dataset-path"], chat["--sharegpt-output-len"]) == ("prompts.json", "64")
    assert {"--disable-shuffle", "--no-oversample"} <= set(chat)
    assert not {"--ignore-eos"} & {*chat, *random}


def test_prompts_of_a_turn_are_distinct_and_not_repeated_in_another() -> None:
    turn = SETTINGS.turn(CLOSED_8, 7, None)
    chosen = choose_prompts(["one", "two", "three"], turn)
    assert len(chosen) == len(set(chosen)) == turn.num_prompts == 24
    assert chosen == choose_prompts(["one", "two", "three"], turn)
    assert sum(each.endswith("\ntwo") for each in chosen) == 8
    assert not set(chosen) & set(choose_prompts(["one", "two", "three"], replace(turn, seed=8)))


def test_the_file_of_prompts_has_the_format_that_the_client_reads(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    write_prompts(["one", "two"], "<user>{}".format, file)
    conversations = [entry["conversations"] for entry in json.loads(file.read_text())]
    assert [each[0]["value"] for each in conversations] == ["<user>one", "<user>two"]
    assert all(len(each) == 2 for each in conversations), "the client drops conversations without an answer"


def test_the_number_of_requests_follows_the_load_unless_it_is_given() -> None:
    given = replace(SETTINGS, num_prompts={ClientLoad("open", 0.5): 12})
    assert [given.turn(cell, 0, 1.0).num_prompts for cell in (CLOSED_8, OPEN_HALF)] == [24, 12]
    assert SETTINGS.turn(OPEN_HALF, 0, 1.0).num_prompts == 40
