"""A test bench for vLLM's V2 model runner: the real runner on a CPU, its kernels in Triton's interpreter."""
