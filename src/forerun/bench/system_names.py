"""Names in results files: the built-in systems, and the precision of a server that runs already."""

from __future__ import annotations

from typing import Final

VLLM: Final = "vllm"
TRANSFORMERS: Final = "transformers"
LLAMA: Final = "llama.cpp"
FORERUN: Final = "forerun"
FORERUN_DRAFT: Final = "forerun-draft"
FORERUN_SYSTEMS: Final = (FORERUN, FORERUN_DRAFT)

AS_SERVED: Final = "as it is served"
"""Model and precision of a server given by its URL."""
