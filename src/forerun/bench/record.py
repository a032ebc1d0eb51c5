"""The results file of a benchmark: JSON lines with the facts of each run, then every answer.

Reports are made from results files alone. An interrupted run is resumed. Another run of the same model,
precision and output length is appended; each answer is compared with the baseline's in its own run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

from forerun.bench.recorded_answer import AnswerKey, CaseKey, OutputRuling, RecordedAnswer
from forerun.errors import ConfigurationError, UnreadableRecord
from forerun.json_records import rename_keys

MUST_MATCH: Final = ("model", "dtype", "num_tokens")
"""Settings that all runs of a results file share."""

OLD_KEYS: Final = {
    "asked": "workload",
    "at": "position",
    "contestants": "systems",
    "drawn": "sampled",
    "gave_up": "excluded",
    "guessed": "drafted_per_step",
    "place": "case",
    "plain": "baseline",
    "stolen": "steal_share",
    "stood": "accepted_per_step",
    "who": "system",
    "width": "concurrency",
    "widths": "concurrencies",
}
"""Key names of earlier results files, with their present names."""

StepCosts = dict[int, float]
"""Seconds of a step by its number of rows."""


@dataclass
class BenchRecord:
    """The contents of a results file: the facts of each run, the last answer of every system to every case,
    the rulings on them, step costs by run and whether tokens are sampled, and the systems excluded from a
    run with the reason.
    """

    runs: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[AnswerKey, RecordedAnswer] = field(default_factory=dict)
    rulings: dict[AnswerKey, OutputRuling] = field(default_factory=dict)
    costs: dict[tuple[int, bool], StepCosts] = field(default_factory=dict)
    excluded: dict[tuple[int, str], str] = field(default_factory=dict)

    @classmethod
    def merged(cls, records: Sequence[BenchRecord]) -> BenchRecord:
        """Concatenate the runs of several records."""
        whole = cls()
        for each in records:
            first = len(whole.runs)
            whole.runs += each.runs
            whole.costs |= {(first + run, sampled): costs for (run, sampled), costs in each.costs.items()}
            whole.excluded |= {(first + run, name): why for (run, name), why in each.excluded.items()}
            for answer in each.answers.values():
                whole.add(replace(answer, case=_shift_run(answer.case, first)))
            for ruling in each.rulings.values():
                whole.add(replace(ruling, case=_shift_run(ruling.case, first)))
        check_runs_match(whole.runs)
        return whole

    @classmethod
    def read(cls, file: Path) -> BenchRecord:
        """Read a results file; a truncated last line is ignored."""
        record = cls()
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line or "{}")
                except ValueError:
                    if number == len(lines):
                        break
                    raise
                if row:
                    record.add_row(_with_present_keys(row))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UnreadableRecord(
                f"{file} is not a results file of `forerun bench run`: {type(error).__name__}: {error}"
            ) from error
        if not record.runs:
            raise UnreadableRecord(f"{file} is empty: `forerun bench run -o FILE` writes results files")
        check_runs_match(record.runs)
        return record

    def add_row(self, row: dict[str, Any]) -> None:
        """Add one parsed line."""
        if "facts" in row:
            self.runs.append(row["facts"])
        elif "costs" in row:
            costs = {int(rows): seconds for rows, seconds in row["costs"].items()}
            self.costs[row["run"], row["sampled"]] = costs
        elif "excluded" in row:
            self.excluded[row["run"], row["system"]] = row["excluded"]
        elif "position" in row:
            self.add(OutputRuling(**{**row, "case": CaseKey(**row["case"])}))
        else:
            self.add(RecordedAnswer.read(row))

    def add(self, each: RecordedAnswer | OutputRuling) -> None:
        """Add an answer or a ruling; an answer replaces an earlier one together with its ruling."""
        key = (each.case, each.system)
        if isinstance(each, OutputRuling):
            self.rulings[key] = each
            return
        self.rulings.pop(key, None)
        self.answers[key] = each
        if not each.error:
            self.excluded.pop((each.case.run, each.system), None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over all lines."""
        yield from ({"facts": facts} for facts in self.runs)
        for (run, sampled), costs in self.costs.items():
            yield {"run": run, "sampled": sampled, "costs": costs}
        yield from map(asdict, self.answers.values())
        yield from map(asdict, self.rulings.values())
        for (run, system), why in self.excluded.items():
            yield {"run": run, "system": system, "excluded": why}

    def failure(self, run: int, system: str) -> str:
        """Why a system left requests of a run unanswered; empty if it did not fail."""
        errors = (
            each.error for each in self.answers.values() if (each.case.run, each.system) == (run, system)
        )
        return self.excluded.get((run, system)) or next(filter(None, errors), "")

    def systems(self) -> dict[str, dict[str, Any]]:
        """The facts of every system by name, in order of first use."""
        return {name: facts for run in self.runs for name, facts in run["systems"].items()}

    def settings(self) -> list[tuple[float, int]]:
        """Every planned combination of temperature and concurrency."""
        every = (
            (float(temperature), int(concurrency))
            for run in self.runs
            for temperature in run["workload"]["temperatures"]
            for concurrency in run["workload"]["concurrencies"]
        )
        return list(dict.fromkeys(every))

    def num_expected(self, system: str, temperature: float, concurrency: int) -> int:
        """The number of answers that a complete record has of a system at a setting."""
        return sum(
            ceil(len(run["workload"]["questions"]) / concurrency) * concurrency
            for run in self.runs
            if system in run["systems"]
            and temperature in run["workload"]["temperatures"]
            and concurrency in run["workload"]["concurrencies"]
        )


def _with_present_keys(row: dict[str, Any]) -> dict[str, Any]:
    """A line of a results file of any version with the present key names."""
    row = rename_keys(row, OLD_KEYS)
    if "case" in row:
        row["case"] = rename_keys(row["case"], OLD_KEYS)
    if "facts" in row:
        facts = row["facts"] = rename_keys(row["facts"], OLD_KEYS)
        facts["workload"] = rename_keys(facts["workload"], OLD_KEYS)
        facts["systems"] = {name: rename_keys(each, OLD_KEYS) for name, each in facts["systems"].items()}
    return row


def _shift_run(case: CaseKey, first: int) -> CaseKey:
    """The case in a merged record in which its record's runs start at `first`."""
    return replace(case, run=case.run + first)


def check_runs_match(runs: Sequence[dict[str, Any]]) -> None:
    """Raise if runs cannot share a report."""
    for key in MUST_MATCH:
        if len(values := {str(run["workload"][key]) for run in runs}) > 1:
            raise ConfigurationError(
                f"the runs of a results file must have the same {key}, got {', '.join(sorted(values))}:"
                " use one file for each"
            )
