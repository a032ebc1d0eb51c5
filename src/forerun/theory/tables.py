"""The results of `forerun theory measure` as tables of text, for terminals and documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.theory.acceptance import ALL

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TheoryTable:
    """A title, the names of the columns, and the cells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(found: Mapping[str, Any]) -> Iterator[TheoryTable]:
    """One table for acceptance, and where speeds were measured three more."""
    yield _acceptance(found["acceptance"])
    if found["speeds"]:
        yield _speeds(found["speeds"])
        yield _oracle(found["oracle"])
        yield _lenience(found["lenience"])


def _acceptance(rows: Rows) -> TheoryTable:
    """A row per draft and temperature, a column per category, all of them last."""
    categories = sorted(dict.fromkeys(row["category"] for row in rows), key=lambda name: name == ALL)
    found = {(row["draft"], row["temperature"], row["category"]): row for row in rows}
    lines = []
    for draft, temperature in dict.fromkeys((row["draft"], row["temperature"]) for row in rows):
        cells = [found.get((draft, temperature, category)) for category in categories]
        numbers = ["" if cell is None else f"{cell['alpha']:.3f}" for cell in cells]
        overall = found[draft, temperature, ALL]
        if overall["interval"] is not None:
            numbers[-1] += " [{:.3f}, {:.3f}]".format(*overall["interval"])
        lines.append((draft, f"{temperature:g}", *numbers, f"{overall['coupled']:.3f}"))
    return TheoryTable("acceptance rate", ("draft", "temperature", *categories, "coupled, all"), tuple(lines))


def _speeds(rows: Rows) -> TheoryTable:
    """A row per draft, temperature and draft length."""
    costs = ("draft", "temperature", "draft length", "c", "verification", "tokens per step", "expected")
    columns = (*costs, "theorem 3.8", "predicted", "measured")
    lines = [
        (
            row["draft"],
            f"{row['temperature']:g}",
            str(row["draft_length"]),
            f"{row['c']:.3f}",
            f"{row['verification']:.2f}",
            f"{row['tokens_per_step']:.2f}",
            f"{row['expected_tokens_by_position']:.2f}",
            f"{row['theorem']:.2f}",
            f"{row['predicted']:.2f}",
            "{:.2f} [{:.2f}, {:.2f}]".format(row["measured"], *row["interval"]),
        )
        for row in rows
    ]
    return TheoryTable("speedup by draft length, one request at a time", columns, tuple(lines))


def _oracle(rows: Rows) -> TheoryTable:
    """A row per draft and temperature."""
    columns = ("draft", "temperature", "acceptance rate", "c", "best draft length", "theorem 3.8", "oracle")
    lines = [
        (
            row["draft"],
            f"{row['temperature']:g}",
            f"{row['alpha']:.3f}",
            f"{row['c']:.3f}",
            str(row["draft_length"]),
            f"{row['speedup']:.2f}",
            f"{row['oracle']:.2f}",
        )
        for row in rows
    ]
    return TheoryTable("an oracle for the draft length, if verification cost nothing", columns, tuple(lines))


def _lenience(rows: Rows) -> TheoryTable:
    """A row per draft, temperature and lenience."""
    columns = ("draft", "temperature", "lenience", "acceptance rate", "theorem 3.8", "distance from p")
    lines = [
        (
            row["draft"],
            f"{row['temperature']:g}",
            f"{row['lenience']:g}",
            f"{row['alpha']:.3f}",
            f"{row['speedup']:.2f}",
            "" if row["distance"] is None else f"{row['distance']:.3f}",
        )
        for row in rows
    ]
    return TheoryTable("lenience (lossy below 1), if verification cost nothing", columns, tuple(lines))
