"""The self-test against servers of the zoo: a correct one passes, a sabotaged one fails, a missing one ends
it. The command prints and writes the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.cli.main import app
from forerun.engines.vllm import sync_debug
from forerun.errors import ServerFailed
from forerun.selftest import gpu, live_server
from forerun.selftest.checks import CheckVerdict
from forerun.selftest.live_server import FORERUN, STOCK, LiveServer, connected
from forerun.selftest.phases import PhaseClock
from forerun.selftest.plan import quick_plan
from forerun.selftest.run import SelftestRun, planned_phases
from zoo.auditing import zoo_server
from zoo.server import ZooServer, run_server
from zoo.speculation import Defect

GREEDY, SEEDED = "identical output, greedy, float32", "identical output, seeded, float32"
ALONE, LOAD = "identical output, greedy one at a time, float32", "identical output under load"
SYNCHRONIZATION = "no host synchronization in verification"
LOGGED = "INFO model runner V2, async scheduling, dtype torch.{}\n"
COUNTED = "INFO sync debug: 0 synchronizations in 8 verifications, detector active\n"


@dataclass
class ZooLauncher:
    """Starts zoo servers; those named in `missing`, with their precision, do not start."""

    folder: Path
    defect: Defect = Defect.NONE
    missing: tuple[tuple[str, bool], ...] = ()
    dtype: str = "bfloat16"
    started: list[tuple[str, bool]] = field(default_factory=list)
    running: int = 0
    servers: list[ZooServer] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str, *, exact: bool, environment: Mapping[str, str]) -> Iterator[LiveServer]:
        assert self.running == 0, "two servers at the same time"
        self.started.append((name, exact))
        if (name, exact) in self.missing:
            raise ServerFailed("the server ended with exit code 1: CUDA out of memory\nfull log: /tmp/x.log")
        server = zoo_server(self.defect if name == FORERUN else Defect.NONE, 1)
        log = self.folder / "log"
        log.write_text(LOGGED.format(self.dtype) + (COUNTED if sync_debug.VARIABLE in environment else ""))
        self.servers.append(server)
        self.environments.append(environment)
        self.running += 1
        try:
            with run_server(server) as url, connected(url, log, is_forerun=name == FORERUN) as live:
                yield live
        finally:
            self.running -= 1


def run_with(
    launcher: ZooLauncher,
    served_dtype: str | None = "bfloat16",
    *,
    has_cuda: bool = False,
    limit: float | None = None,
) -> SelftestRun:
    clock = PhaseClock(planned_phases(served_dtype))
    run = SelftestRun(quick_plan(), launcher, clock, served_dtype, has_cuda=has_cuda, time_limit=limit)
    run.run()
    return run


def verdicts(run: SelftestRun) -> dict[str, CheckVerdict]:
    return {check.name: check.verdict for check in run.checks}


def test_correct_servers_pass_one_after_the_other(tmp_path: Path) -> None:
    launcher = ZooLauncher(tmp_path)
    run = run_with(launcher, has_cuda=True)
    assert launcher.started == [(STOCK, True), (FORERUN, True), (STOCK, False), (FORERUN, False)]
    found = verdicts(run)
    throughput = found.pop("throughput against stock")
    assert set(found.values()) == {CheckVerdict.PASSED}
    assert set(found) == {
        *(GREEDY, ALONE, SEEDED, SYNCHRONIZATION, LOAD, ALONE.replace("float32", "bfloat16")),
        *("identical output, greedy, bfloat16", "identical output, seeded, bfloat16"),
    }
    assert throughput is CheckVerdict.UNDECIDED, "one round"
    assert run.exit_code == 0
    assert [cell.num_identical for cell in run.cells] == [cell.num_outputs for cell in run.cells]
    variables = [sync_debug.VARIABLE in each for each in launcher.environments]
    assert variables == [False, True, False, False], "the timed server does not count synchronizations"
    assert str(run.modes[FORERUN]) == "V2, async scheduling"


@pytest.mark.parametrize(
    ("defect", "failed"), [(Defect.GREEDY_RATIO, {GREEDY, ALONE}), (Defect.SEED_DRIFT, {SEEDED})]
)
def test_a_sabotaged_server_fails(defect: Defect, failed: set[str], tmp_path: Path) -> None:
    run = run_with(ZooLauncher(tmp_path, defect, dtype="float32"), "float32")
    assert {name for name, verdict in verdicts(run).items() if verdict is CheckVerdict.FAILED} == failed
    assert run.exit_code == 1
    for check in (each for each in run.checks if each.name in failed):
        num_differing = check.details["num_outputs"] - check.details["num_identical"]
        assert len(check.details["differences"]) == num_differing > 0


def test_servers_that_do_not_fit_in_float32_leave_only_those_checks_undecided(tmp_path: Path) -> None:
    launcher = ZooLauncher(tmp_path, missing=((STOCK, True),))
    run = run_with(launcher, has_cuda=True)
    assert launcher.started == [(STOCK, True), (STOCK, False), (FORERUN, False)]
    found = verdicts(run)
    assert found[GREEDY] is found[SEEDED] is CheckVerdict.UNDECIDED
    assert found["identical output, greedy, bfloat16"] is CheckVerdict.PASSED
    assert found[SYNCHRONIZATION] is CheckVerdict.PASSED, "counted in the served precision instead"
    assert run.exit_code == 0


def test_a_served_precision_that_does_not_start_ends_the_run_with_2(tmp_path: Path) -> None:
    run = run_with(ZooLauncher(tmp_path, missing=((FORERUN, False),)), "float32")
    assert "out of memory" in run.failure
    assert run.exit_code == 2
    assert verdicts(run) == {SYNCHRONIZATION: CheckVerdict.NOT_APPLICABLE}


def test_stock_runs_once_if_there_is_no_time_for_more(tmp_path: Path) -> None:
    run = run_with(ZooLauncher(tmp_path), "float32", limit=0.0)
    assert run.cells[0].baseline_drift is None
    assert "--time-limit" in run.notes[0]


def test_stock_runs_twice_if_there_is_time(tmp_path: Path) -> None:
    launcher = ZooLauncher(tmp_path)
    run = run_with(launcher, "float32", limit=1000.0)
    assert launcher.started == [(STOCK, False), (FORERUN, False), (STOCK, False)]
    assert all(cell.baseline_drift for cell in run.cells)
    assert run.clock.current + 1 == len(run.clock.phases) == 8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    (folder / "model.safetensors").touch()
    return folder


def invoke(
    launcher: ZooLauncher, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path
) -> tuple[int, str, str]:
    """Run the command with this launcher; returns exit code, standard output and standard error."""
    monkeypatch.setattr(live_server, "VllmLauncher", lambda *_: launcher)
    monkeypatch.setattr(gpu, "find_gpus", list)
    monkeypatch.chdir(launcher.folder)
    result = CliRunner().invoke(app, ["selftest", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_json_and_writes_markdown(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    code, printed, progress = invoke(ZooLauncher(tmp_path), monkeypatch, model, "--quick", "--json")
    assert code == 0, progress
    values = json.loads(printed)
    assert values["result"] == "passed"
    assert len(values["checks"]) == 9
    assert values["facts"]["model"] == "Model"
    page = (tmp_path / "selftest-report.md").read_text()
    assert str(tmp_path) not in page + printed
    assert "| identical output, greedy, float32 | pass |" in page
    assert all(f"[{number}/10]" in progress for number in range(1, 11))
    assert "left)" in progress


def test_the_command_fails_for_a_sabotaged_server_and_shows_why(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    launcher = ZooLauncher(tmp_path, Defect.SEED_DRIFT)
    code, printed, _ = invoke(launcher, monkeypatch, model, "--quick", "-o", tmp_path / "out.md")
    assert code == 1
    assert "beyond rounding" in printed or "more than rounding explains" in printed
    assert "outputs differ" in (tmp_path / "out.md").read_text().splitlines()[0]


def test_the_command_names_the_remedy_of_a_server_that_does_not_start(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    launcher = ZooLauncher(tmp_path, missing=((STOCK, True), (STOCK, False)))
    code, printed, progress = invoke(launcher, monkeypatch, model, "--quick")
    assert code == 2
    assert "out of memory" in printed
    assert "--gpu-memory-utilization" in printed
    assert "logs of the servers" in progress
    code, _, message = invoke(launcher, monkeypatch, tmp_path / "no-such-model", "--quick")
    assert code == 2
    assert "no-such-model" in message
    code, _, message = invoke(launcher, monkeypatch, model, "--quick", "--", "--scheduler-cls", "other")
    assert code == 2
    assert "--scheduler-cls" in message


def test_an_interrupt_stops_the_server_and_removes_the_logs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    launcher = ZooLauncher(tmp_path)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forerun.selftest.run.record_outputs", interrupt)
    code, _, message = invoke(launcher, monkeypatch, model, "--quick")
    assert code == 130
    assert "interrupted" in message
    assert launcher.started == [(STOCK, True)]
    assert launcher.running == 0
    assert not (tmp_path / "selftest-report.md").exists()
