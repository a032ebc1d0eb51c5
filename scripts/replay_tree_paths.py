"""Replays recorded outputs through the suffix drafter: chains, trees, and trees restricted to paths.

Prints one JSON line per number of draft tokens and of paths: tokens per step (geometric mean over
categories), rows per draft token, and side paths per step. No model runs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from forerun.bench.replay import Replay, ReplayStats
from forerun.bench.transcripts import read_transcripts
from forerun.control.candidates import drafter_survival
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.tree_paths import paths_of, select_paths
from forerun.types import Draft, RequestView, Verdict

TRANSCRIPTS = Path(__file__).parents[1] / "tests" / "data" / "replay.jsonl"


class PathDrafter:
    """Restricts the trees of the suffix drafter to paths, and counts their rows."""

    def __init__(self, max_paths: int) -> None:
        self.suffix, self.max_paths = SuffixDrafter(), max_paths
        self.num_rows = self.num_draft_tokens = self.num_side_paths = 0

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """The selected part of every tree."""
        return [self._select(draft) for draft in self.suffix.propose(views, budgets)]

    def _select(self, draft: Draft) -> Draft:
        if not len(draft):
            return draft
        kept = draft.select(select_paths(draft, drafter_survival(draft).astype(float), self.max_paths))
        paths = paths_of(kept)
        self.num_rows += sum(1 + len(path) for path in paths)
        self.num_draft_tokens += len(kept)
        self.num_side_paths += len(paths) - 1
        return kept

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Pass the verdict on."""
        self.suffix.learn(id, draft, verdict)

    def forget(self, id: str) -> None:  # noqa: A002
        """Forget a request."""
        self.suffix.forget(id)


def geometric_mean(stats: dict[str, ReplayStats]) -> float:
    """Tokens per step over all categories."""
    return math.exp(sum(math.log(each.tokens_per_step) for each in stats.values()) / len(stats))


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--transcripts", type=Path, default=TRANSCRIPTS)
    parser.add_argument("--nodes", type=int, action="append", help="draft tokens of a tree (default: 16, 32)")
    parser.add_argument("--paths", type=int, action="append", help="paths of a tree (default: 3, 5, 9, 17)")
    arguments = parser.parse_args()
    transcripts = read_transcripts(arguments.transcripts)
    for nodes in arguments.nodes or (16, 32):
        for name, drafter in (("chain", SuffixDrafter(chain=True)), ("tree", SuffixDrafter())):
            found = geometric_mean(Replay(drafter, nodes=nodes).run(transcripts))
            print(json.dumps({"nodes": nodes, "draft": name, "tokens_per_step": round(found, 3)}), flush=True)
        for max_paths in arguments.paths or (3, 5, 9, 17):
            paths = PathDrafter(max_paths)
            stats = Replay(paths, nodes=nodes).run(transcripts)
            record = {
                "nodes": nodes,
                "draft": f"at most {max_paths} paths",
                "tokens_per_step": round(geometric_mean(stats), 3),
                "rows_per_draft_token": round(paths.num_rows / paths.num_draft_tokens, 2),
                "side_paths_per_step": round(
                    paths.num_side_paths / sum(each.num_steps for each in stats.values()), 1
                ),
            }
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
