"""Inference engines: `local` on transformers models, `vllm` as a plug-in for vLLM.

Both draft with `speculator.Speculator`, one lifecycle for every engine.
"""
