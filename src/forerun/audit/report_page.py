"""An audit report as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Final

from forerun.audit.figures import draw_evidence, draw_frequencies, draw_gaps
from forerun.audit.report import AuditReport
from forerun.audit.report_format import format_cell, summary_lines
from forerun.rendering.html_page import (
    collapsed,
    element,
    json_block,
    table,
    text_element,
    text_list,
    write_html_page,
)
from forerun.rendering.plots import as_svg

_STYLE: Final = """
body { max-width: 62rem }
.verdict { padding: .8rem 1rem; border-left: .4rem solid; background: var(--panel); font-size: 1.1rem }
.code0 { border-color: var(--green) } .code1 { border-color: var(--red) }
.code2 { border-color: var(--orange) }
td.difference { color: var(--red); font-weight: bold } td.good { color: var(--green) }
td.text { white-space: normal; text-align: left; min-width: 18rem }
td a { color: inherit }
"""


def write_page(report: AuditReport, file: Path) -> None:
    """Write the report to an HTML file."""
    name, verdict = f"forerun audit {report.audit}", report.verdict
    reason = text_element("b", verdict.value) + text_element("span", f": {report.reason}")
    body = [
        text_element("h1", name),
        element("p", reason, f"verdict code{verdict.exit_code}"),
        text_list(summary_lines(report)),
        *_figures(report),
        text_element("h2", "Results"),
        _table(report),
        *_evidence(report),
        text_element("h2", "Configuration"),
        json_block({"question": report.question, "provenance": report.as_json()["provenance"]}),
    ]
    write_html_page(file, f"{name}: {verdict.value}", body, _STYLE)


def _figures(report: AuditReport) -> Iterator[str]:
    """The figures that this report has data for, with their titles."""
    if trace := report.details.get("trace"):
        rows = [(row["name"], row["trace"]) for row in report.rows if row.get("trace")]
        yield text_element("h2", "Evidence over samples")
        yield as_svg(partial(draw_evidence, trace, rows, report.details["error_rate"]))
    if frequencies := [(row["name"], row["frequencies"]) for row in report.rows if row.get("frequencies")]:
        yield text_element("h2", "Observed against expected frequencies")
        yield as_svg(partial(draw_frequencies, frequencies))
    if differing := [row for row in report.rows if row.get("gap") is not None]:
        yield text_element("h2", "First differences")
        yield as_svg(partial(draw_gaps, differing))


def _table(report: AuditReport) -> str:
    head = [text_element("th", title) for title in report.columns.values()]
    return table(head, [_row(row, list(report.columns)) for row in report.rows])


def _row(row: dict[str, Any], keys: list[str]) -> str:
    return element("tr", "".join(_cell(key, row) for key in keys))


def _cell(key: str, row: dict[str, Any]) -> str:
    """A cell; public reports are links."""
    if key == "reports":
        return element("td", ", ".join(map(_report_link, row[key].split(", "))))
    text = format_cell(row.get(key))
    css_class = ""
    if key == "finding":
        css_class = {"difference": "difference", "fail": "difference", "pass": "good"}.get(text, "")
    return text_element("td", text, f"{css_class} text" if key == "reason" else css_class)


def _report_link(name: str) -> str:
    """A link to a report named `owner/repository#number`."""
    repository, _, number = name.partition("#")
    address = f"https://github.com/{escape(repository)}/issues/{escape(number)}"
    return f'<a href="{address}">{escape(name)}</a>'


def _evidence(report: AuditReport) -> Iterator[str]:
    """The outputs behind the findings of a suite, collapsed."""
    rows = [row for row in report.rows if row.get("evidence")]
    if rows:
        yield text_element("h2", "Evidence")
    for row in rows:
        yield collapsed(f"{row['name']}: {row['finding']}", json_block(row["evidence"]))
