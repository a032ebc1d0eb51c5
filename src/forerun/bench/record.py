"""What a benchmark saw, in a file of JSON lines: each run's facts, then every answer as it came.

Reports are made from records alone. A run that was interrupted is taken up again; another run of the same
suite is appended, so that several may make one record. An answer is compared with those of its own run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any, Final, TextIO

from forerun.errors import ConfigurationError, UnreadableRecord
from forerun.servers.streaming import StreamedAnswer, decoding_speed, num_steps

DIGITS: Final = 5
"""Of seconds: what clocks tell apart."""

TAKEN: Final = 0.05
"""Of the machine: an answer during which others had more is disturbed."""

ALIKE: Final = ("model", "dtype", "num_tokens")
"""What runs have to share to stand in one report."""

Costs = dict[int, float]
"""Seconds of a pass by its rows."""


@dataclass(frozen=True, slots=True)
class CaseKey:
    """A question in a run: at which temperature, how many at a time, in which group of them; `number` counts
    on where questions are asked again to fill a group.
    """

    run: int
    temperature: float
    width: int
    group: int
    number: int
    question: str
    category: str


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """What one contestant answered at a place, piece by piece, or why it did not.

    Times are seconds after the group began; the request itself was sent at `sent`. `stolen` is what others
    had of the machine meanwhile.
    """

    place: CaseKey
    who: str
    sent: float = 0.0
    times: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""
    guessed: tuple[int, ...] | None = None
    stood: tuple[int, ...] | None = None
    error: str = ""
    stolen: float = 0.0

    @classmethod
    def of(cls, place: CaseKey, who: str, streamed: StreamedAnswer, began: float) -> RecordedAnswer:
        """From what was streamed, in a group that began then."""
        sent = streamed.sent - began
        return cls(
            place,
            who,
            round(sent, DIGITS),
            tuple(round(sent + each, DIGITS) for each in streamed.times),
            streamed.counts,
            streamed.num_tokens,
            streamed.token_ids,
            "" if streamed.token_ids else streamed.text,
            streamed.guessed,
            streamed.stood,
        )

    @classmethod
    def read(cls, row: dict[str, Any]) -> RecordedAnswer:
        """From a line of a record."""
        lists = ("times", "counts", "token_ids", "guessed", "stood")
        tuples = {key: None if row[key] is None else tuple(row[key]) for key in lists}
        return cls(**{**row, **tuples, "place": CaseKey(**row["place"])})

    @property
    def speed(self) -> float | None:
        """Tokens per second from the first to the last."""
        return decoding_speed(self.times, self.counts, self.num_tokens)

    @property
    def num_later(self) -> int:
        """Tokens behind the first piece."""
        return self.num_tokens - self.counts[0]

    @property
    def num_steps(self) -> int | None:
        """Passes of the target behind the first piece, where the server tells of guesses."""
        return num_steps(self.num_later, self.stood)

    @property
    def words(self) -> tuple[int, ...] | str:
        """What was said: token ids where they are known."""
        return self.token_ids or self.text


@dataclass(frozen=True, slots=True)
class OutputRuling:
    """Where an answer first parts from its plain one's, and how far apart the two tokens are in float32; a
    tie if not farther than rounding moves them. Without a reference nobody knows.
    """

    place: CaseKey
    who: str
    at: int
    gap: float | None = None
    bound: float | None = None

    @property
    def finding(self) -> str:
        """The verdict in a word."""
        if self.gap is None or self.bound is None:
            return "undecided"
        return "near-tie" if self.gap <= self.bound else "difference"


Key = tuple[CaseKey, str]
"""Where, and who."""


@dataclass
class BenchRecord:
    """Everything of a file: facts by run, the last answer of everybody at every place, rulings on them, what
    passes cost where a server told, and why somebody was not asked any more.
    """

    runs: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[Key, RecordedAnswer] = field(default_factory=dict)
    rulings: dict[Key, OutputRuling] = field(default_factory=dict)
    costs: dict[tuple[int, bool], Costs] = field(default_factory=dict)
    gave_up: dict[tuple[int, str], str] = field(default_factory=dict)

    @classmethod
    def merged(cls, records: Sequence[BenchRecord]) -> BenchRecord:
        """Several records as one: their runs, one after another."""
        whole = cls()
        for each in records:
            first = len(whole.runs)
            whole.runs += each.runs
            whole.costs |= {(first + run, drawn): costs for (run, drawn), costs in each.costs.items()}
            whole.gave_up |= {(first + run, who): why for (run, who), why in each.gave_up.items()}
            for answer in each.answers.values():
                whole.keep(replace(answer, place=_later(answer.place, first)))
            for ruling in each.rulings.values():
                whole.keep(replace(ruling, place=_later(ruling.place, first)))
        _demand_alike(whole.runs)
        return whole

    @classmethod
    def read(cls, file: Path) -> BenchRecord:
        """A record from its file; a last line cut off is let go."""
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
                    record.take(row)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UnreadableRecord(f"{file} holds no record of a benchmark: {error}") from error
        if not record.runs:
            raise UnreadableRecord(f"{file} is empty: `forerun bench run -o FILE` writes results files")
        _demand_alike(record.runs)
        return record

    def take(self, row: dict[str, Any]) -> None:
        """One line."""
        if "facts" in row:
            self.runs.append(row["facts"])
        elif "costs" in row:
            costs = {int(rows): seconds for rows, seconds in row["costs"].items()}
            self.costs[row["run"], row["drawn"]] = costs
        elif "gave_up" in row:
            self.gave_up[row["run"], row["who"]] = row["gave_up"]
        elif "at" in row:
            self.keep(OutputRuling(**{**row, "place": CaseKey(**row["place"])}))
        else:
            self.keep(RecordedAnswer.read(row))

    def keep(self, each: RecordedAnswer | OutputRuling) -> None:
        """An answer takes the place of an earlier one, and of what was said of that."""
        key = (each.place, each.who)
        if isinstance(each, OutputRuling):
            self.rulings[key] = each
            return
        self.rulings.pop(key, None)
        self.answers[key] = each
        if not each.error:
            self.gave_up.pop((each.place.run, each.who), None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every line."""
        yield from ({"facts": facts} for facts in self.runs)
        for (run, drawn), costs in self.costs.items():
            yield {"run": run, "drawn": drawn, "costs": costs}
        yield from map(asdict, self.answers.values())
        yield from map(asdict, self.rulings.values())
        for (run, who), why in self.gave_up.items():
            yield {"run": run, "who": who, "gave_up": why}

    def failure(self, run: int, who: str) -> str:
        """Why a system did not answer everything in a run; empty if it did not fail."""
        errors = (each.error for each in self.answers.values() if (each.place.run, each.who) == (run, who))
        return self.gave_up.get((run, who)) or next(filter(None, errors), "")

    def systems(self) -> dict[str, dict[str, Any]]:
        """Who took part, in order, with what is known of each."""
        return {who: facts for run in self.runs for who, facts in run["contestants"].items()}

    def settings(self) -> list[tuple[float, int]]:
        """The temperatures and widths that were to be asked at."""
        every = (
            (float(temperature), int(width))
            for run in self.runs
            for temperature in run["asked"]["temperatures"]
            for width in run["asked"]["widths"]
        )
        return list(dict.fromkeys(every))

    def num_wanted(self, who: str, temperature: float, width: int) -> int:
        """How many answers somebody was to give at a setting, over all runs it took part in."""
        return sum(
            ceil(len(run["asked"]["questions"]) / width) * width
            for run in self.runs
            if who in run["contestants"]
            and temperature in run["asked"]["temperatures"]
            and width in run["asked"]["widths"]
        )


class RecordWriter:
    """A record on disk, to which lines are added as they come."""

    def __init__(self, file: Path, facts: dict[str, Any]) -> None:
        self.file = file
        self.record = BenchRecord.read(file) if file.exists() and file.stat().st_size else BenchRecord()
        facts = json.loads(json.dumps(facts))
        _demand_alike([*self.record.runs, facts])
        self.resumed = bool(self.record.runs) and _same(self.record.runs[-1], facts)
        if self.resumed:  # who gave up is asked again
            gone = [key for key in self.record.gave_up if key[0] == self.run]
            for key in gone:
                del self.record.gave_up[key]
        fresh = file.with_name(f"{file.name}.new")
        self._out: TextIO = fresh.open("w", encoding="utf-8")
        for row in self.record.rows():  # written anew, since the last line may have been cut off
            self._write(row)
        if not self.resumed:
            self.add({"facts": facts})
        fresh.replace(file)

    @property
    def run(self) -> int:
        """The number of the run that is under way."""
        return len(self.record.runs) - 1

    def done(self) -> set[Key]:
        """What this run has already; what erred is asked again."""
        return {
            key for key, each in self.record.answers.items() if each.place.run == self.run and not each.error
        }

    def keep(self, each: RecordedAnswer | OutputRuling) -> None:
        """An answer, or what was ruled on one."""
        self._write(asdict(each))
        self.record.keep(each)

    def add(self, row: dict[str, Any]) -> None:
        """Another line, kept even if the process is not there any more in a moment."""
        self._write(row)
        self.record.take(json.loads(json.dumps(row)))

    def close(self) -> None:
        """Done."""
        self._out.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._out.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._out.flush()


def _later(place: CaseKey, first: int) -> CaseKey:
    """A place of a run whose number has become a higher one."""
    return replace(place, run=place.run + first)


def _demand_alike(runs: Sequence[dict[str, Any]]) -> None:
    """Raise where runs cannot stand in one report."""
    for key in ALIKE:
        if len(values := {str(run["asked"][key]) for run in runs}) > 1:
            raise ConfigurationError(
                f"runs that differ in {key} ({', '.join(sorted(values))}) make no record: give each its own"
            )


def _same(earlier: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether a run may go on as another: the same questions, contestants and versions. A record within a
    repository is itself a change to it.
    """
    commits = [str(each.get("commit")).removesuffix("-dirty") for each in (earlier, facts)]
    alike = all(earlier.get(key) == facts.get(key) for key in ("asked", "contestants", "versions"))
    return alike and commits[0] == commits[1]
