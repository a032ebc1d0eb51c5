"""What speculation did, counted, and read by another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.engines.vllm import counters
from forerun.engines.vllm.tally import (
    ACCEPTED,
    ERRORS,
    PLAIN,
    PROPOSED,
    SECONDS,
    STEPS,
    TOKENS,
    Minutes,
    Tally,
    summary,
)


def by_depth(tally: Tally, name: str, drafter: str) -> list[float]:
    return [
        value
        for (each, labels), value in zip(tally.series, tally.values.tolist(), strict=True)
        if each == name and ("drafter", drafter) in labels
    ]


def test_guesses_count_for_who_made_them_at_their_depth() -> None:
    tally = Tally(("suffix", "grammar"), 4)
    tally.step(["suffix", "suffix", "grammar"], num_said=3)  # two stood
    tally.step(["suffix", "grammar", "grammar", "grammar"], num_said=5)  # all four
    tally.step(["suffix"], num_said=1)  # it fell
    tally.step([], num_said=1)
    assert (tally.total(STEPS), tally.total(PLAIN), tally.total(TOKENS)) == (4, 1, 10)
    assert by_depth(tally, PROPOSED, "suffix") == [3, 1, 0, 0]
    assert by_depth(tally, ACCEPTED, "suffix") == [2, 1, 0, 0]
    assert by_depth(tally, PROPOSED, "grammar") == [0, 1, 2, 1]
    assert by_depth(tally, ACCEPTED, "grammar") == [0, 1, 1, 1]
    assert tally.total(TOKENS) == tally.total(STEPS) + tally.total(ACCEPTED)


def test_counts_are_read_by_another_process_while_they_grow(tmp_path: Path) -> None:
    file = tmp_path / "some.counts"
    tally = Tally(("suffix",), 2)
    tally.step(["suffix"], num_said=2)
    tally.publish(file)
    tally.error("suffix")
    tally.spent("suffix", 0.25)
    program = (
        "import json, sys; from pathlib import Path; from forerun.engines.vllm.counters import read;"
        "print(json.dumps([[name, value] for (name, _), value in read(Path(sys.argv[1])) if value]))"
    )
    seen = json.loads(subprocess.check_output([sys.executable, "-c", program, file]))
    assert dict(seen) == {STEPS: 1, TOKENS: 2, PROPOSED: 1, ACCEPTED: 1, ERRORS: 1, SECONDS: 0.25}
    assert file.stat().st_mode & 0o077 == 0, "nobody else's business"


def test_files_are_told_apart_by_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for instance, engine in (("ab", 0), ("ab", 1), ("abc", 0)):
        Tally(("suffix",), 1).publish(counters.file_of(instance, engine))
    assert counters.files_of("ab") == [counters.file_of("ab", 0), counters.file_of("ab", 1)]
    assert counters.files_of("nobody") == []


def test_a_line_a_minute_if_anything_happened() -> None:
    tally = Tally(("suffix", "ngram"), 4)
    minutes = Minutes(tally, now=0.0)
    tally.step(["suffix"] * 4, num_said=4)
    tally.step([], num_said=1)
    assert minutes.line(59.0) is None
    line = minutes.line(61.0)
    assert line == "2.50 tokens per step; 50% of steps plain; suffix: 3 of 4 guesses stood (75%)"
    assert minutes.line(200.0) is None, "nothing happened since"
    tally.step(["ngram"], num_said=1)
    tally.error("ngram")
    line = minutes.line(300.0)
    assert line is not None
    assert "1.00 tokens per step" in line
    assert "ngram: 1 errors" in line
    assert "suffix" not in line


def test_the_summary_of_everything() -> None:
    tally = Tally(("suffix",), 4)
    tally.step(["suffix"], num_said=2)
    assert summary(tally).startswith("2.00 tokens per step")
