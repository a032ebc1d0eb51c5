"""Executes blocks of Python one after the other, each in a namespace of its own.

Argument: the blocks (JSON). The answer has the lines that each block prints.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO

from e2e.programs.engine_output import answer


def main(blocks: str) -> None:
    printed = []
    for code in json.loads(blocks):
        with redirect_stdout(StringIO()) as output:
            exec(compile(code, "document", "exec"), {"__name__": "__main__"})
        printed.append(output.getvalue().splitlines())
    answer(printed)


if __name__ == "__main__":
    main(*sys.argv[1:])
