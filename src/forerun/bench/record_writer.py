"""Writes the results file of a benchmark as answers arrive, and resumes an interrupted run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from forerun.bench.record import BenchRecord, StepCosts, check_runs_match
from forerun.bench.recorded_answer import AnswerKey, OutputRuling, RecordedAnswer


class RecordWriter:
    """A results file that grows as answers arrive. A complete prefix is on disk at any time."""

    def __init__(self, file: Path, facts: dict[str, Any]) -> None:
        self.file = file
        self.record = BenchRecord.read(file) if file.exists() and file.stat().st_size else BenchRecord()
        facts = json.loads(json.dumps(facts))
        check_runs_match([*self.record.runs, facts])
        self.resumed = bool(self.record.runs) and _is_same_run(self.record.runs[-1], facts)
        if self.resumed:  # excluded systems get another chance
            for key in [key for key in self.record.excluded if key[0] == self.run]:
                del self.record.excluded[key]
        fresh = file.with_name(f"{file.name}.new")
        self._out: TextIO = fresh.open("w", encoding="utf-8")
        for row in self.record.rows():  # rewritten because the last line may be truncated
            self._write(row)
        if not self.resumed:
            self._add_row({"facts": facts})
        fresh.replace(file)

    @property
    def run(self) -> int:
        """The index of the current run."""
        return len(self.record.runs) - 1

    def completed(self) -> set[AnswerKey]:
        """Answers of this run without an error; the others are requested again."""
        return {
            key for key, each in self.record.answers.items() if each.case.run == self.run and not each.error
        }

    def add(self, each: RecordedAnswer | OutputRuling) -> None:
        """Write an answer or a ruling."""
        self._write(asdict(each))
        self.record.add(each)

    def exclude(self, system: str, reason: str) -> None:
        """Record that a system takes no further part in this run."""
        self._add_row({"run": self.run, "system": system, "excluded": reason})

    def add_costs(self, costs: StepCosts, *, sampled: bool) -> None:
        """Record the step costs of this run, of greedy steps or of steps that sample."""
        self._add_row({"run": self.run, "sampled": sampled, "costs": costs})

    def close(self) -> None:
        """Close the file."""
        self._out.close()

    def _add_row(self, row: dict[str, Any]) -> None:
        self._write(row)
        self.record.add_row(json.loads(json.dumps(row)))

    def _write(self, row: dict[str, Any]) -> None:
        """Append a line and flush it, so that it survives the process."""
        self._out.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._out.flush()


def _is_same_run(earlier: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether a run can be resumed: same workload, systems, versions and commit. The -dirty suffix of a
    commit is ignored, because a results file inside the repository is itself a change.
    """
    commits = [str(each.get("commit")).removesuffix("-dirty") for each in (earlier, facts)]
    matches = all(earlier.get(key) == facts.get(key) for key in ("workload", "systems", "versions"))
    return matches and commits[0] == commits[1]
