"""Speculative decoding with vLLM from Python.

python examples/serving/from_python.py MODEL
"""

import sys

from vllm import LLM, SamplingParams

from forerun import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments


def main() -> None:
    """Generate with and without draft tokens, and compare the outputs."""
    speculation = engine_arguments(SpeculationConfig(max_draft=16))
    llm = LLM(sys.argv[1], max_model_len=512, enforce_eager=True, dtype="float32", **speculation)
    prompt = "one two three four five, one two three four five, one two three"
    texts = []
    for options in ({}, {"forerun_drafter": "none"}):
        params = SamplingParams(temperature=0, max_tokens=32, extra_args=options)
        (output,) = llm.generate([prompt], params)
        texts.append(output.outputs[0].text)
    print(texts[0])
    print("identical output without draft tokens:", texts[0] == texts[1])


if __name__ == "__main__":
    main()
