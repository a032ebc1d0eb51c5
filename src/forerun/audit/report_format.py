"""Text and number formatting of a report, shared by the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forerun.audit.report import AuditReport


def summary_lines(report: AuditReport) -> Iterator[str]:
    """The e-value, the distance bound, the power and the notes, one line each."""
    if report.e_value is not None:
        rate = report.details["error_rate"]
        yield (
            f"evidence against the server: e-value {format_number(report.e_value)};"
            f" a difference is reported from {format_number(1 / rate)} on"
        )
    if report.tv_bound is not None:
        yield f"total variation distance, where bounded: at most {format_number(report.tv_bound)}"
    for each in report.details.get("power", ()):
        tokens = each["num_tokens"]
        needed = (
            f"about {tokens:,} tokens needed"
            if tokens
            else f"not detectable, below the rounding of {format_number(each['epsilon'])}"
        )
        yield f"detecting a bias of {each['bias']:.0%}: {needed}"
    yield from report.notes


def format_cell(value: Any) -> str:
    """The text of a table cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return format_number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_number(value: float) -> str:
    """A number in three significant digits, or in scientific notation if very large or small."""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.3g}"
    return f"{value:.1e}"
