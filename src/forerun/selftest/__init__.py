"""`forerun selftest`: stock vLLM and `forerun serve` on this machine, one after the other."""
