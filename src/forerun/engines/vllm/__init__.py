"""What plugs into vLLM; the only room that knows it.

- `Drafter`: guesses for stock vLLM, through its public hook for drafters; replaces nothing
- `scheduler.Scheduler`: guesses where requests and salts are known; `Nobody` is then the worker's drafter
- `worker.CPUWorker`, `worker.CUDAWorker`: with `sampler.Sampler`, which keeps the words of plain decoding
- `contract`: every name of vLLM's that we lean on
"""

from forerun.engines.vllm.drafter import Drafter, Nobody

__all__ = ["Drafter", "Nobody"]
