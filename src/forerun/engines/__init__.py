"""Inference engines: `local` on transformers models, `vllm` as a plug-in for vLLM."""
