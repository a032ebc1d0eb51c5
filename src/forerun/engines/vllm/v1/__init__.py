"""vLLM's V1 model runner: draft tokens are verified position by position by vLLM's own sampler."""
