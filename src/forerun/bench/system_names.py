"""Names of the built-in systems that other modules refer to."""

from __future__ import annotations

from typing import Final

VLLM: Final = "vllm"
TRANSFORMERS: Final = "transformers"
LLAMA: Final = "llama.cpp"
FORERUN: Final = "forerun"
FORERUN_DRAFT: Final = "forerun-draft"
FORERUN_SYSTEMS: Final = (FORERUN, FORERUN_DRAFT)
