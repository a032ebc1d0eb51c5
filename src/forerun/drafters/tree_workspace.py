"""Reusable arrays for growing trees, and the meaning of their rows."""

from __future__ import annotations

from typing import Final

import numpy as np

# Rows of `ints`: per match,
ORDER: Final = 0
SPARE: Final = 1
CHOICE: Final = 2
# per candidate below one node: its token, the number of its matches and the end of them in the order,
CANDIDATE_TOKEN: Final = 3
CANDIDATE_SIZE: Final = 4
CANDIDATE_END: Final = 5
# per node taken or in the frontier, and the nodes ranked by survival.
NODE_TOKEN: Final = 6
NODE_PARENT: Final = 7
NODE_DEPTH: Final = 8
NODE_FIRST: Final = 9
NODE_LAST: Final = 10
RANK: Final = 11

# Rows of `floats`: per candidate, per rank.
CANDIDATE_VOTES: Final = 0
SURVIVAL: Final = 1


class Workspace:
    """Arrays for nodes, matches and candidates; allocation would slow the compiled functions down."""

    __slots__ = ("floats", "ints")

    def __init__(self, width: int) -> None:
        self.ints = np.empty((RANK + 1, width), dtype=np.int64)
        self.floats = np.empty((SURVIVAL + 1, width), dtype=np.float64)

    @property
    def width(self) -> int:
        """Maximum number of nodes, of matches, and of candidates below a node."""
        return self.ints.shape[1]
