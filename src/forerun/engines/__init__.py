"""What runs models: forerun inside vLLM."""
