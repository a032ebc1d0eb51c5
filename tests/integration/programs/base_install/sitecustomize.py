"""Python imports this at its start: it hides torch and the packages that depend on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = {"torch", "transformers", "vllm"}


class BaseInstall(PathFinder):
    """Finds the packages of the base install."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for a hidden package."""
        return None if fullname.partition(".")[0] in HIDDEN else PathFinder.find_spec(fullname, path, target)


sys.meta_path = [BaseInstall if finder is PathFinder else finder for finder in sys.meta_path]
