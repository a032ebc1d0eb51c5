"""Counts the work of draft trees in an engine of this process: steps, winners, rows and block copies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch


class TreeCounts:
    """Wraps the planner and the verification of trees of an engine, until the process ends.

    Counts verified trees, trees whose side path won, their draft tokens, their rows, and copied blocks.
    """

    def __init__(self, scheduler: Any) -> None:
        from forerun.engines.vllm.v2 import path_winner, scratch_blocks

        self.counts: Counter[str] = Counter()
        self._fit = scheduler.trees.fit
        self._winning_segments = path_winner.winning_segments
        self._copy = scratch_blocks.BlockCopier.copy
        scheduler.trees.fit = self.fit
        path_winner.winning_segments = self.winning_segments
        counts = self

        def copy(copier: Any, source: torch.Tensor, target: torch.Tensor) -> None:
            counts.counts["blocks_copied"] += int((source != target).sum())
            counts._copy(copier, source, target)

        scratch_blocks.BlockCopier.copy = copy  # type: ignore[method-assign, assignment]

    def fit(self, step: Any, output: Any) -> Any:
        """Count the paths of a step as the scheduler plans them."""
        side_paths = self._fit(step, output)
        for paths in step.paths.values():
            if len(paths) > 1:
                self.counts["trees"] += 1
                self.counts["side_paths"] += len(paths) - 1
                self.counts["draft_tokens"] += len({node for path in paths for node in path})
                self.counts["rows"] += sum(1 + len(path) for path in paths)
        return side_paths

    def winning_segments(self, num_sampled: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
        """Count the requests whose side path won."""
        winner = self._winning_segments(num_sampled, owner)
        self.counts["side_path_wins"] += int((winner >= len(winner)).sum())
        return winner
