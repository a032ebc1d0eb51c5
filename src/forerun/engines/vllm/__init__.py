"""What plugs into vLLM; the only room that knows it.

`Drafter` is for vLLM's public `custom_class` hook and replaces nothing of vLLM.
"""

from forerun.engines.vllm.drafter import Drafter

__all__ = ["Drafter"]
