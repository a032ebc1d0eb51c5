"""`forerun audit exact` without the slow rows. Arguments: those of the command."""

from __future__ import annotations

import sys

from forerun.audit.exact import run
from forerun.cli.main import app

if __name__ == "__main__":
    names = vars(run)
    names.update(
        LOSSLESS_VERIFIERS=names["LOSSLESS_VERIFIERS"][-1:],
        MUTANTS=names["MUTANTS"][:1],
        prove_lenient=lambda: iter(()),
    )
    app(["audit", "exact", *sys.argv[1:]])
