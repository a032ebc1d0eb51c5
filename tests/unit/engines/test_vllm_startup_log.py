"""Long phases of a start log their progress."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace

import pytest

from forerun.engines.vllm import LookupProposer
from forerun.engines.vllm.startup_log import log_progress
from forerun.engines.vllm.stats import logger


class Lines(logging.Handler):
    """Records log lines, and sets an event after three."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.three = Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if len(self.lines) == 3:
            self.three.set()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    handler, level = Lines(), logger.level
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    logger.setLevel(logging.INFO)  # also drops the answers of isEnabledFor that the logger has cached
    yield handler
    logger.setLevel(level)


def test_a_long_phase_logs_its_start_its_progress_and_its_end(lines: Lines) -> None:
    with log_progress("kernels", "compiling", lambda: ", 7 of 9", every=0.01):
        assert lines.three.wait(60), "no progress line"
    assert lines.lines[0] == "kernels: compiling"
    assert "7 of 9" in lines.lines[1]
    assert "done in" in lines.lines[-1]


def test_a_phase_that_fails_is_not_logged_as_done(lines: Lines) -> None:
    with pytest.raises(KeyError), log_progress("kernels", "compiling"):
        raise KeyError
    assert lines.lines == ["kernels: compiling"]


def test_a_start_logs_that_it_loads_or_compiles_kernels(lines: Lines) -> None:
    LookupProposer(
        SimpleNamespace(
            additional_config={},
            speculative_config=SimpleNamespace(num_speculative_tokens=4),
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            model_config=SimpleNamespace(get_vocab_size=lambda: 100, tokenizer="none", model="none"),
        )
    )
    assert "kernels" in lines.lines[0]
    assert "done in" in lines.lines[-1]
