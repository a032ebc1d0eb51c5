"""Adds an audit report, without per-sample data, to a record with the command to repeat it.

forerun audit sampled ... --json > report.json
python scripts/record_audit.py NAME report.json --server "forerun serve MODEL ..." --command "forerun ..."

Reports of `forerun audit suite` go into docs/records/suite.json, all others into docs/records/audits.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.bench.provenance import provenance

RECORDS = Path(__file__).parent.parent / "docs" / "records"
_PER_SAMPLE = ("trace", "frequencies", "prompt", "prefix")
_RECORDED = ("verdict", "reason", "e_value", "tv_bound", "num_samples", "notes", "power", "findings")


def main(
    name: str,
    report: Path,
    server: Annotated[str, typer.Option(help="The command that started the server under test.")],
    command: Annotated[str, typer.Option(help="The audit command.")],
    seconds: Annotated[float, typer.Option(help="Duration of the audit in seconds.")],
    package: Annotated[list[str] | None, typer.Option(help="Also record this package's version.")] = None,
    version: Annotated[
        list[str] | None, typer.Option(help="NAME=VERSION of a package that is not installed here.")
    ] = None,
) -> None:
    """Add one audit to the record, or replace it by name."""
    findings: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    facts = provenance(command, ("forerun", "torch", *(package or ())), 2)
    facts["versions"] |= dict(each.split("=", 1) for each in version or ())
    entry = {
        **facts,
        "server": server,
        "date": findings["provenance"]["date"],
        "seconds": seconds,
        **{key: findings[key] for key in _RECORDED if key in findings},
        "rows": [
            {key: value for key, value in row.items() if key not in _PER_SAMPLE} for row in findings["rows"]
        ],
    }
    file = RECORDS / ("suite.json" if findings["audit"] == "suite" else "audits.json")
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(record | {name: entry}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
