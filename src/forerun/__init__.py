"""forerun: lossless speculative decoding.

This module is the public API. Importing it loads neither torch nor an engine nor a plotting library; packages
that need them are imported on first use.
"""

from typing import TYPE_CHECKING, Any

from forerun.config import SpeculationConfig
from forerun.errors import ForerunError
from forerun.types import Draft, Drafter, Proposal, RequestView, SamplingParams, Verdict

if TYPE_CHECKING:
    from forerun.engines.local.llm import LLM, generate
    from forerun.engines.local.request import Result

__version__ = "0.1.0.dev0"

__all__ = [
    "LLM",
    "Draft",
    "Drafter",
    "ForerunError",
    "Proposal",
    "RequestView",
    "Result",
    "SamplingParams",
    "SpeculationConfig",
    "Verdict",
    "__version__",
    "generate",
]


def __getattr__(name: str) -> Any:
    """Load the names that run a model on first access."""
    if name in {"LLM", "generate"}:
        from forerun.engines.local import llm  # noqa: PLC0415

        return getattr(llm, name)
    if name == "Result":
        from forerun.engines.local.request import Result  # noqa: PLC0415

        return Result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
