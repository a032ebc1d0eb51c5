"""`forerun serve` beside stock vLLM in float32: one pair of servers for all tests of this folder."""
