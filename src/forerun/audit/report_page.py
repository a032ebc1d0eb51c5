"""A report as one self-contained HTML page, without scripts or external resources."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from forerun.audit.figures import draw_evidence, draw_frequencies, draw_gaps
from forerun.audit.report import AuditReport
from forerun.audit.report_format import format_cell, summary_lines

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>forerun audit $audit: $verdict</title>
<meta name="color-scheme" content="light dark">
<style>
:root {
  color-scheme: light dark; --text: #212529; --page: #ffffff; --panel: #f1f3f5; --line: #dee2e6;
  --green: #2b8a3e; --red: #c92a2a; --orange: #d9480f; --blue: #1971c2; --grey: #868e96
}
@media (prefers-color-scheme: dark) {
  :root {
    --text: #dee2e6; --page: #16181b; --panel: #22262a; --line: #3a4046;
    --green: #69db7c; --red: #ff8787; --orange: #ffa94d; --blue: #74c0fc; --grey: #868e96
  }
}
body {
  font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page)
}
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.verdict { padding: .8rem 1rem; border-left: .4rem solid; background: var(--panel); font-size: 1.1rem }
.code0 { border-color: var(--green) } .code1 { border-color: var(--red) }
.code2 { border-color: var(--orange) }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left } td.difference { color: var(--red); font-weight: bold }
svg { max-width: 100%; height: auto }
pre { overflow-x: auto; background: var(--panel); padding: .8rem; font-size: .8rem }
</style>
</head>
<body>
<h1>forerun audit $audit</h1>
<p class="verdict code$code"><b>$verdict</b>: $reason</p>
<ul>$summary</ul>
$figures
<h2>Results</h2>
<div class="table"><table>$table</table></div>
<h2>Configuration</h2>
<pre>$configuration</pre>
</body>
</html>
""")


def write_page(report: AuditReport, file: Path) -> None:
    """Write the report to an HTML file."""
    configuration = {"question": report.question, "provenance": report.as_json()["provenance"]}
    file.write_text(
        _PAGE.substitute(
            audit=escape(report.audit),
            verdict=escape(report.verdict.value),
            reason=escape(report.reason),
            code=report.verdict.exit_code,
            summary="".join(f"<li>{escape(line)}</li>" for line in summary_lines(report)),
            figures="".join(f"<h2>{escape(title)}</h2>{svg}" for title, svg in _figures(report)),
            table=_table(report),
            configuration=escape(json.dumps(configuration, indent=1, ensure_ascii=False)),
        ),
        encoding="utf-8",
    )


def _figures(report: AuditReport) -> list[tuple[str, str]]:
    """Titles and SVGs of the figures that this report has data for."""
    figures = []
    if trace := report.details.get("trace"):
        rows = [(row["name"], row["trace"]) for row in report.rows if row.get("trace")]
        figures.append(("Evidence over samples", draw_evidence(trace, rows, report.details["error_rate"])))
    if frequencies := [(row["name"], row["frequencies"]) for row in report.rows if row.get("frequencies")]:
        figures.append(("Observed against expected frequencies", draw_frequencies(frequencies)))
    if differing := [row for row in report.rows if row.get("gap") is not None]:
        figures.append(("First differences", draw_gaps(differing)))
    return figures


def _table(report: AuditReport) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in report.columns.values())
    return f"<tr>{head}</tr>" + "".join(_line(row, list(report.columns)) for row in report.rows)


def _line(row: dict[str, Any], keys: list[str]) -> str:
    finding = " class='difference'" if row.get("finding") == "difference" else ""
    cells = "".join(
        f"<td{finding if key == 'finding' else ''}>{escape(format_cell(row.get(key)))}</td>" for key in keys
    )
    return f"<tr>{cells}</tr>"
