"""vLLM's V2 model runner: draft tokens are verified in one batched pass, in sync and async mode."""
