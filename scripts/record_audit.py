"""Keep what an audit found in docs/records/audits.json: the report without its points, and how to repeat it.

forerun audit sampled ... --json > report.json
python scripts/record_audit.py NAME report.json --server "forerun serve MODEL ..." --command "forerun ..."
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.bench.provenance import provenance

RECORD = Path(__file__).parent.parent / "docs" / "records" / "audits.json"
_POINTS = ("trace", "compared", "prompt", "said")
_KEPT = ("verdict", "reason", "e_value", "tv_bound", "num_samples", "notes", "power", "findings")


def main(
    name: str,
    report: Path,
    server: Annotated[str, typer.Option(help="How the server under test was started.")],
    command: Annotated[str, typer.Option(help="The audit itself.")],
    seconds: Annotated[float, typer.Option(help="How long it took.")],
    package: Annotated[list[str] | None, typer.Option(help="Also note this package's version.")] = None,
    version: Annotated[
        list[str] | None, typer.Option(help="NAME=VERSION of what is not installed here.")
    ] = None,
) -> None:
    """Add one audit to the record, or replace it."""
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    facts = provenance(command, ("forerun", "torch", *(package or ())), 2)
    facts["versions"] |= dict(each.split("=", 1) for each in version or ())
    entry = {
        **facts,
        "server": server,
        "date": found["made"]["date"],
        "seconds": seconds,
        **{key: found[key] for key in _KEPT if key in found},
        "rows": [{key: value for key, value in row.items() if key not in _POINTS} for row in found["rows"]],
    }
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    RECORD.write_text(json.dumps(record | {name: entry}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
