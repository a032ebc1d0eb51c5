"""Parts of the self-test without servers: time left, plans, log lines, ratios, verdicts, the report."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from forerun.audit.report import AuditReport, AuditVerdict
from forerun.bench.ratios import RatioEstimate
from forerun.engines.vllm import runner_log
from forerun.engines.vllm.runner_log import RunnerMode, log_runner, read_runner_mode
from forerun.selftest.checks import CheckVerdict
from forerun.selftest.gpu import Gpu, wait_until_released
from forerun.selftest.identity import identity_check
from forerun.selftest.live_server import FORERUN, STOCK, VllmLauncher, without_speculation
from forerun.selftest.load_rounds import CellRun, LoadRound
from forerun.selftest.phases import Phase, PhaseClock, PhaseKind
from forerun.selftest.plan import full_plan, quick_plan, single_prompts
from forerun.selftest.remedies import DEFAULT, remedy_for
from forerun.selftest.report import as_json, headline, markdown, selftest_facts
from forerun.selftest.run import SelftestRun, planned_phases
from forerun.selftest.throughput import compare_load, load_identity_check, throughput_check
from forerun.servers.completions import END


def test_a_finished_phase_corrects_the_estimate_of_its_kind_only() -> None:
    time = 0.0
    phases = [Phase("a", PhaseKind.START), Phase("b", PhaseKind.OUTPUTS), Phase("c", PhaseKind.START)]
    clock = PhaseClock(phases, now=lambda: time)
    start, outputs = PhaseKind.START.value, PhaseKind.OUTPUTS.value
    assert clock.remaining == 2 * start + outputs
    clock.begin("a")
    time = 10.0
    assert clock.remaining == 2 * start + outputs - 10
    clock.begin("b")
    assert clock.remaining == outputs + 10
    clock.begin("c")
    time = 30.0
    assert clock.remaining == 0


def test_skipped_phases_are_removed() -> None:
    clock = PhaseClock(planned_phases("bfloat16"), now=lambda: 0.0)
    assert len(clock.phases) == 10
    clock.begin("stock vLLM, float32: starting")
    clock.begin("stock vLLM, served precision: starting")
    assert [phase.name for phase in clock.phases][:2] == [
        "stock vLLM, float32: starting",
        "stock vLLM, served precision: starting",
    ]
    assert len(clock.phases) == 7
    assert not any("float32" in phase.name for phase in planned_phases("float32"))


def test_requests_have_distinct_seeds_and_every_text_fills_the_highest_concurrency() -> None:
    for plan in (full_plan(), quick_plan()):
        seeds = [sampling.seed for _, sampling in plan.seeded_requests]
        assert len(set(seeds)) == len(seeds) == 2 * len(plan.prompts)
        assert all(len(some) == max(plan.concurrencies) for some in plan.workloads.values())
        assert all(sampling.greedy for _, sampling in plan.greedy_requests)
    prompts = full_plan().prompts
    first, second = single_prompts(prompts, 0, 3), single_prompts(prompts, 1, 3)
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    ("log", "mode"),
    [
        ("INFO model runner V2, async scheduling, dtype torch.bfloat16", ("V2", "async", "bfloat16")),
        ("model runner: V1 (no Triton), sync scheduling (on V1)", ("V1", "sync", None)),
        ("with config: dtype=torch.float16, x\nUsing V2 Model Runner", ("V2", None, "float16")),
        ("with config: model='m', dtype=torch.float16, max_seq_len=8", ("V1", None, "float16")),
        ("Traceback", (None, None, None)),
    ],
)
def test_runner_and_mode_are_read_from_a_log(log: str, mode: tuple[str | None, ...]) -> None:
    assert read_runner_mode(log) == RunnerMode(*mode)


@pytest.mark.parametrize(("runner", "mode"), [("V1", "sync"), ("V2", "async")])
def test_the_logged_line_is_read_back_and_silent_without_the_variable(
    runner: str, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimpleNamespace(
        use_v2_model_runner=runner == "V2",
        scheduler_config=SimpleNamespace(async_scheduling=mode == "async"),
        model_config=SimpleNamespace(dtype="torch.float16"),
        additional_config={"forerun": {"invariant": runner == "V1"}},
    )
    monkeypatch.delenv(runner_log.VARIABLE, raising=False)
    with caplog.at_level("INFO", "vllm.forerun"):
        log_runner(config)
        assert caplog.text == ""
        monkeypatch.setenv(runner_log.VARIABLE, "1")
        log_runner(config)
    assert read_runner_mode(caplog.text) == RunnerMode(runner, mode, "float16")
    assert ("invariant mode" in caplog.text) == (runner == "V1")


def round_of(seconds: float, num_tokens: int = 10, first: int = 0) -> LoadRound:
    return LoadRound(seconds, (tuple(range(first, first + num_tokens)),))


def test_a_ratio_compares_seconds_for_the_same_tokens_and_averages_both_runs_of_the_baseline() -> None:
    cell = ("text", 1)
    baseline = {cell: CellRun((round_of(2.0), round_of(2.0)), {})}
    counters = {
        "forerun:tokens_total": 20.0,
        "forerun:request_steps_total": 8.0,
        "spec_decode_num_draft_tokens_total": 40.0,
        "spec_decode_num_accepted_tokens_total": 10.0,
    }
    ours = {cell: CellRun((round_of(1.0, 20), round_of(0.5)), counters)}
    again = {cell: CellRun((round_of(1.0), round_of(1.0)), {})}
    (once,) = compare_load(baseline, ours)
    assert once.ratio.value == pytest.approx(4.0), "0.05 s a token instead of 0.2 s"
    assert (once.tokens_per_step, once.acceptance_rate, once.baseline_drift) == (2.5, 0.25, None)
    assert (once.num_identical, once.num_outputs) == (1, 2)
    (twice,) = compare_load(baseline, ours, again)
    assert twice.ratio.value == pytest.approx(3.0)
    assert twice.baseline_drift == pytest.approx(2.0)


def test_outputs_that_differ_under_load_leave_identity_undecided() -> None:
    stock = {("text", 1): CellRun((round_of(1.0), round_of(1.0)), {})}
    other = {("text", 1): CellRun((round_of(1.0), round_of(1.0, first=1)), {})}
    same, different = (load_identity_check(compare_load(stock, each)) for each in (stock, other))
    assert (same.verdict, different.verdict) == (CheckVerdict.PASSED, CheckVerdict.UNDECIDED)
    assert different.is_identity
    assert different.details == {"num_outputs": 2, "num_identical": 1}


def test_the_end_of_an_output_is_no_token() -> None:
    assert LoadRound(1.0, ((1, 2, END),)).num_tokens == 2


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ((1.0, 1.0), CheckVerdict.PASSED),
        ((1.1, 1.1), CheckVerdict.FAILED),
        ((0.9, 1.4), CheckVerdict.UNDECIDED),
        ((0.5,), CheckVerdict.UNDECIDED),
    ],
)
def test_the_verdict_on_throughput_needs_an_interval(
    seconds: tuple[float, ...], verdict: CheckVerdict
) -> None:
    stock = CellRun(tuple(round_of(1.0) for _ in seconds), {})
    ours = CellRun(tuple(map(round_of, seconds)), {})
    check = throughput_check(compare_load({("text", 1): stock}, {("text", 1): ours}))
    assert check.verdict is verdict
    assert not check.is_identity


def report(verdict: AuditVerdict, *findings: str) -> AuditReport:
    rows = tuple({"name": "'a'", "finding": each, "num_tokens": 5, "position": 3} for each in findings)
    return AuditReport("greedy", verdict, "the reason", rows, {})


@pytest.mark.parametrize(
    ("found", "dtype", "num_accepted", "verdict"),
    [
        (report(AuditVerdict.SAME, "same"), "float32", 4, CheckVerdict.PASSED),
        (report(AuditVerdict.SAME, "same"), "float32", 0, CheckVerdict.UNDECIDED),
        (report(AuditVerdict.SAME, "same"), "float32", None, CheckVerdict.UNDECIDED),
        (report(AuditVerdict.ROUNDING, "near-tie"), "bfloat16", 4, CheckVerdict.PASSED),
        (report(AuditVerdict.ROUNDING, "near-tie"), "float32", 4, CheckVerdict.UNDECIDED),
        (report(AuditVerdict.DIFFERENT, "difference"), "bfloat16", 0, CheckVerdict.FAILED),
        (report(AuditVerdict.NO_VERDICT, "undecided"), "bfloat16", 4, CheckVerdict.UNDECIDED),
    ],
)
def test_the_verdict_on_outputs(
    found: AuditReport, dtype: str, num_accepted: int | None, verdict: CheckVerdict
) -> None:
    check = identity_check(found, "greedy", dtype, num_accepted)
    assert check.verdict is verdict
    assert check.is_identity
    assert check.details["num_identical"] == sum(row["finding"] == "same" for row in found.rows)


def test_stock_gets_no_speculation_and_float32_is_last(tmp_path: Path) -> None:
    flags = ("--dtype", "bfloat16", "-sc", "{}", "--spec-tokens=4", "--speculative-config.method", "eagle")
    launcher = VllmLauncher("MODEL", flags, tmp_path, 1.0, tmp_path / "speculation.json")
    stock, ours = (launcher.command(name, exact=True) for name in (STOCK, FORERUN))
    assert not any("spec" in each or each == "{}" for each in stock)
    assert {"--speculation", "-sc"} <= set(ours)
    for command in (stock, ours):
        given = [value for flag, value in pairwise(command) if flag == "--dtype"]
        assert given == ["bfloat16", "float32"]
    assert "float32" not in launcher.command(STOCK, exact=False)
    assert without_speculation(["--port", "1"]) == ["--port", "1"]


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "--gpu-memory-utilization"),
        ("ValueError: Free memory on device is less than desired GPU memory utilization", "--max-model-len"),
        ("the server did not respond within the start-up timeout of 600 s", "--startup-timeout"),
        ("something else", "forerun doctor"),
    ],
)
def test_a_failure_has_a_remedy(failure: str, named: str) -> None:
    assert named in remedy_for(failure)
    assert (remedy_for(failure) == DEFAULT) == (failure == "something else")


def test_the_memory_of_a_stopped_server_is_awaited() -> None:
    used = iter([9000, 5000, 1200])
    assert wait_until_released(1000, lambda: next(used), timeout=60.0)
    assert list(used) == []
    assert not wait_until_released(1000, lambda: 9000, timeout=0.0)


def finished_run() -> SelftestRun:
    clock = PhaseClock([], now=lambda: 0.0)
    run = SelftestRun(quick_plan(), None, clock, "bfloat16", has_cuda=True)  # type: ignore[arg-type]
    found = report(AuditVerdict.DIFFERENT, *["difference"] * 10, "same")
    run.checks = [identity_check(found, "greedy", "bfloat16", 5)]
    run.modes = {STOCK: RunnerMode("V2", "async", "bfloat16"), FORERUN: RunnerMode("V1", "sync", "bfloat16")}
    stock = {("text | with bar", 16): CellRun((round_of(2.0), round_of(2.0)), {})}
    run.cells = compare_load(stock, stock)
    return run


def test_the_report_names_modes_hardware_and_no_directory_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "Some-Model"
    folder.mkdir()
    run = finished_run()
    facts = selftest_facts(
        str(folder), ["--chat-template", str(folder / "chat.jinja")], [Gpu("H100", 81559, "570.1")]
    )
    text = markdown(run, facts)
    assert str(tmp_path) not in text
    assert "forerun selftest Some-Model -- --chat-template chat.jinja" in text
    assert all(part in text for part in ("H100", "81559 MiB", "V2, async", "V1, sync", "1.00 [1.00, 1.00]"))
    assert text.count("| difference |") == 8
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) == 4
    assert widths
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_the_exit_code_is_that_of_outputs_first_and_of_servers_second(tmp_path: Path) -> None:
    run = finished_run()
    run.failure = f"the server ended with exit code 1: broken\nfull log: {tmp_path / 'stock.log'}"
    facts = selftest_facts("org/model", [], [])
    assert (run.exit_code, as_json(run, facts)["exit_code"]) == (1, 1)
    run.checks = []
    values = as_json(run, facts)
    assert values["exit_code"] == 2
    assert str(tmp_path) not in values["failure"]
    assert str(tmp_path) not in markdown(run, facts)
    run.failure = ""
    assert run.exit_code == 0


def test_the_headline_names_failed_checks_that_leave_the_exit_code_at_0() -> None:
    run = finished_run()
    slow = throughput_check(
        compare_load(
            {("text", 1): CellRun((round_of(1.0),) * 2, {})}, {("text", 1): CellRun((round_of(2.0),) * 2, {})}
        )
    )
    run.checks = [identity_check(report(AuditVerdict.SAME, "same"), "greedy", "float32", 4)]
    assert headline(run) == "passed"
    run.checks.append(slow)
    assert run.exit_code == 0
    assert slow.name in headline(run)
    run.checks.append(identity_check(report(AuditVerdict.SAME, "same"), "greedy", "bfloat16", 0))
    assert "not compared" in headline(run)


def test_an_interval_without_bounds_is_null_in_json() -> None:
    run = {("text", 1): CellRun((round_of(2.0),), {})}
    (cell,) = compare_load(run, run)
    assert cell.ratio == RatioEstimate(1.0, 0.0, float("inf"))
    assert cell.as_json()["interval"] is None
