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
from typing import Any, Final, TextIO

from forerun.errors import ConfigurationError, UnreadableRecord
from forerun.servers.streaming import StreamedAnswer, decode_tokens_per_second, num_steps

TIME_DIGITS: Final = 5
"""Decimal places of recorded seconds."""

MAX_STEAL_SHARE: Final = 0.05
"""Answers during which steal time exceeded this share of CPU time count as disturbed."""

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


@dataclass(frozen=True, slots=True)
class CaseKey:
    """A question of a run at one temperature and concurrency.

    `number` continues to count where questions repeat to fill a group.
    """

    run: int
    temperature: float
    concurrency: int
    group: int
    number: int
    question: str
    category: str


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The answer of one system to one case, event by event, or the error in its place.

    Times are in seconds since the start of the group; the request was sent at `sent`. `steal_share` is the
    share of CPU time that the host gave to others meanwhile.
    """

    case: CaseKey
    system: str
    sent: float = 0.0
    times: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""
    drafted_per_step: tuple[int, ...] | None = None
    accepted_per_step: tuple[int, ...] | None = None
    error: str = ""
    steal_share: float = 0.0

    @classmethod
    def from_stream(
        cls, case: CaseKey, system: str, streamed: StreamedAnswer, group_start: float
    ) -> RecordedAnswer:
        """Convert a streamed answer of a group that started at `group_start`."""
        sent = streamed.sent - group_start
        return cls(
            case,
            system,
            round(sent, TIME_DIGITS),
            tuple(round(sent + each, TIME_DIGITS) for each in streamed.times),
            streamed.counts,
            streamed.num_tokens,
            streamed.token_ids,
            "" if streamed.token_ids else streamed.text,
            streamed.drafted_per_step,
            streamed.accepted_per_step,
        )

    @classmethod
    def read(cls, row: dict[str, Any]) -> RecordedAnswer:
        """Parse a line of a results file."""
        lists = ("times", "counts", "token_ids", "drafted_per_step", "accepted_per_step")
        tuples = {key: None if row[key] is None else tuple(row[key]) for key in lists}
        return cls(**{**row, **tuples, "case": CaseKey(**row["case"])})

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed from the first token to the last."""
        return decode_tokens_per_second(self.times, self.counts, self.num_tokens)

    @property
    def num_later_tokens(self) -> int:
        """Tokens after the first event."""
        return self.num_tokens - self.counts[0]

    @property
    def num_steps(self) -> int | None:
        """Target steps after the first event; none if the server reports no drafts."""
        return num_steps(self.num_later_tokens, self.accepted_per_step)

    @property
    def output(self) -> tuple[int, ...] | str:
        """Token ids, or the text if the server does not return them."""
        return self.token_ids or self.text


@dataclass(frozen=True, slots=True)
class OutputRuling:
    """The first position at which an answer differs from its baseline's, and the gap in float32 between the
    two tokens there. A gap within `bound` is a near-tie; without a reference model the gap is unknown.
    """

    case: CaseKey
    system: str
    position: int
    gap: float | None = None
    bound: float | None = None

    @property
    def verdict(self) -> str:
        """`undecided`, `near-tie` or `difference`."""
        if self.gap is None or self.bound is None:
            return "undecided"
        return "near-tie" if self.gap <= self.bound else "difference"


AnswerKey = tuple[CaseKey, str]
"""A case and the name of a system."""


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
        _check_runs_match(whole.runs)
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
        _check_runs_match(record.runs)
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


class RecordWriter:
    """A results file that grows as answers arrive. A complete prefix is on disk at any time."""

    def __init__(self, file: Path, facts: dict[str, Any]) -> None:
        self.file = file
        self.record = BenchRecord.read(file) if file.exists() and file.stat().st_size else BenchRecord()
        facts = json.loads(json.dumps(facts))
        _check_runs_match([*self.record.runs, facts])
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


def _with_present_keys(row: dict[str, Any]) -> dict[str, Any]:
    """A line of a results file of any version with the present key names."""
    row = _renamed(row)
    if "case" in row:
        row["case"] = _renamed(row["case"])
    if "facts" in row:
        facts = row["facts"] = _renamed(row["facts"])
        facts["workload"] = _renamed(facts["workload"])
        facts["systems"] = {name: _renamed(each) for name, each in facts["systems"].items()}
    return row


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    return {OLD_KEYS.get(key, key): value for key, value in row.items()}


def _shift_run(case: CaseKey, first: int) -> CaseKey:
    """The case in a merged record in which its record's runs start at `first`."""
    return replace(case, run=case.run + first)


def _check_runs_match(runs: Sequence[dict[str, Any]]) -> None:
    """Raise if runs cannot share a report."""
    for key in MUST_MATCH:
        if len(values := {str(run["workload"][key]) for run in runs}) > 1:
            raise ConfigurationError(
                f"the runs of a results file must have the same {key}, got {', '.join(sorted(values))}:"
                " use one file for each"
            )


def _is_same_run(earlier: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether a run can be resumed: same workload, systems, versions and commit. The -dirty suffix of a
    commit is ignored, because a results file inside the repository is itself a change.
    """
    commits = [str(each.get("commit")).removesuffix("-dirty") for each in (earlier, facts)]
    matches = all(earlier.get(key) == facts.get(key) for key in ("workload", "systems", "versions"))
    return matches and commits[0] == commits[1]
