"""Shared types: a request as a drafter sees it, its draft, and the outcome of verification.

All are frozen dataclasses or protocols. The package depends neither on models nor on engines and does not
import torch: a distribution is any one-dimensional array. Import these names from here; the modules are:

- `arrays`: array types
- `sampling`: the sampling settings of a request
- `draft`: a tree of draft tokens, and the q they were sampled from
- `verdict`: the outcome of verifying a draft
- `drafter`: the drafter protocol, and the view of a request that drafters get
- `top_tokens`: the target's likeliest next tokens, for drafters that recycle logits
"""

from forerun.types.arrays import BoolArray, Distribution, Float32Array, FloatArray, IntArray, Tokens
from forerun.types.draft import ROOT, Draft, Proposal
from forerun.types.drafter import Drafter, LogitsDrafter, RequestView
from forerun.types.sampling import SamplingParams
from forerun.types.top_tokens import TopTokens
from forerun.types.verdict import Verdict

__all__ = [
    "ROOT",
    "BoolArray",
    "Distribution",
    "Draft",
    "Drafter",
    "Float32Array",
    "FloatArray",
    "IntArray",
    "LogitsDrafter",
    "Proposal",
    "RequestView",
    "SamplingParams",
    "Tokens",
    "TopTokens",
    "Verdict",
]
