"""Host synchronizations are counted with torch's sync debug mode, here with a fake of CUDA."""

from __future__ import annotations

import warnings

import pytest

from forerun.engines.vllm.sync_debug import (
    MAX_LOGGED_PLACES,
    VARIABLE,
    SyncCounter,
    SyncCounts,
    count_synchronizations,
    read_sync_counts,
)
from forerun.selftest.checks import CheckVerdict
from forerun.selftest.sync_check import synchronization_check


class FakeCuda:
    """Warns of synchronizations while the mode is `warn`, as torch does."""

    mode = "default"

    def get_sync_debug_mode(self) -> str:
        return self.mode

    def set_sync_debug_mode(self, mode: str) -> None:
        self.mode = mode

    def synchronize(self, line: int = 1) -> None:
        if self.mode == "warn":
            warnings.warn_explicit(
                "called a synchronizing CUDA operation", UserWarning, "src/verification.py", line
            )


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


def counts_of(caplog: pytest.LogCaptureFixture) -> SyncCounts | None:
    return read_sync_counts(caplog.text)


def test_synchronizations_are_counted_inside_the_block_only(
    cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.forerun")
    counter = SyncCounter(cuda, cuda.synchronize)
    with counter.watch():
        pass
    assert counts_of(caplog) == SyncCounts(0, 1, is_active=True)
    with counter.watch():
        cuda.synchronize(7)
        cuda.synchronize(7)
    cuda.synchronize(8)
    assert counts_of(caplog) == SyncCounts(2, 2, is_active=True, places=("verification.py:7",))
    assert cuda.mode == "default"


def test_the_mode_is_restored_after_an_error(cuda: FakeCuda) -> None:
    counter = SyncCounter(cuda, cuda.synchronize)
    cuda.mode = "error"
    with pytest.raises(ZeroDivisionError), counter.watch():
        raise ZeroDivisionError
    assert cuda.mode == "error"


def test_a_detector_that_misses_a_synchronization_made_on_purpose_is_inactive(
    cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.forerun")
    with SyncCounter(cuda, lambda: None).watch():
        pass
    assert counts_of(caplog) == SyncCounts(0, 1, is_active=False)
    assert synchronization_check(caplog.text, has_cuda=True).verdict is CheckVerdict.UNDECIDED


def test_other_warnings_are_passed_on(cuda: FakeCuda) -> None:
    counter = SyncCounter(cuda, cuda.synchronize)
    with pytest.warns(UserWarning, match="other"), counter.watch():
        warnings.warn("other", UserWarning, stacklevel=1)


def test_long_runs_log_few_lines(cuda: FakeCuda, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vllm.forerun")
    counter = SyncCounter(cuda, cuda.synchronize)
    for _ in range(1000):
        with counter.watch():
            pass
    assert len(caplog.records) == 10
    assert counts_of(caplog) == SyncCounts(0, 512, is_active=True)


def test_each_place_is_logged_once_and_only_some_of_them(
    cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.forerun")
    counter = SyncCounter(cuda, cuda.synchronize)
    for _ in range(2):
        with counter.watch():
            for line in range(MAX_LOGGED_PLACES + 5):
                cuda.synchronize(line)
    found = counts_of(caplog)
    assert found is not None
    assert len(found.places) == MAX_LOGGED_PLACES
    assert found.num_synchronizations == 2 * (MAX_LOGGED_PLACES + 5)


def test_nothing_is_counted_without_cuda(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    caplog.set_level("INFO", "vllm.forerun")
    with count_synchronizations():
        pass
    assert caplog.text == ""


LINE = "sync debug: {} synchronizations in {} verifications, detector active"


def test_counts_of_several_workers_are_added() -> None:
    log = "\n".join(
        f"(Worker_TP{rank} pid={70 + rank}) INFO 11-18 09:00:00 [x.py:1] {LINE.format(*counts)}"
        for rank, counts in [(0, (0, 1)), (1, (0, 1)), (0, (0, 8)), (1, (3, 4))]
    )
    assert read_sync_counts(log) == SyncCounts(3, 12, is_active=True)
    assert read_sync_counts("no counts") is None


@pytest.mark.parametrize(
    ("log", "has_cuda", "verdict"),
    [
        (LINE.format(0, 64), True, CheckVerdict.PASSED),
        (LINE.format(1, 64), True, CheckVerdict.FAILED),
        (LINE.format(0, 0), True, CheckVerdict.UNDECIDED),
        ("", True, CheckVerdict.UNDECIDED),
        ("", False, CheckVerdict.NOT_APPLICABLE),
    ],
)
def test_the_verdict_on_synchronizations(log: str, has_cuda: bool, verdict: CheckVerdict) -> None:
    check = synchronization_check(log, has_cuda=has_cuda)
    assert check.verdict is verdict
    assert not check.is_identity
