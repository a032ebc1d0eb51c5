"""The words and numbers of a report, the same in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forerun.audit.report import AuditReport


def summary(report: AuditReport) -> Iterator[str]:
    """The numbers of the whole, and what should be known beside them."""
    if report.e_value is not None:
        rate = report.details["error_rate"]
        yield (
            f"evidence against the server: {number(report.e_value)} to 1; it would be found different at"
            f" {number(1 / rate)} to 1"
        )
    if report.tv_bound is not None:
        yield f"distance of the laws, where it can be bounded: at most {number(report.tv_bound)}"
    for each in report.details.get("power", ()):
        tokens = each["num_tokens"]
        needs = (
            f"about {tokens:,} tokens"
            if tokens
            else f"not to be told from rounding, which may make {number(each['epsilon'])}"
        )
        yield f"to catch a bias of {each['bias']:.0%}: {needs}"
    yield from report.notes


def cell(value: Any) -> str:
    """What stands in a cell of the table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def number(value: float) -> str:
    """A number as short as it can be read."""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.3g}"
    return f"{value:.1e}"
