"""forerun: lossless speculative decoding.

This module is the public surface. Importing it loads no torch, no engine and no plotting library: heavy
rooms are imported where they are used.
"""

from forerun.config import SpeculationConfig
from forerun.errors import ForerunError
from forerun.types import Draft, Drafter, Proposal, RequestView, SamplingParams, Verdict

__version__ = "0.1.0.dev0"

__all__ = [
    "Draft",
    "Drafter",
    "ForerunError",
    "Proposal",
    "RequestView",
    "SamplingParams",
    "SpeculationConfig",
    "Verdict",
    "__version__",
]
