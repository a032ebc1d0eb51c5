"""vLLM from Python, speculating.

python examples/serving/from_python.py MODEL
"""

import sys

from vllm import LLM, SamplingParams

from forerun import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments


def main() -> None:
    """Say something with guesses and without, and compare."""
    speculation = engine_arguments(SpeculationConfig(max_draft=16))
    llm = LLM(sys.argv[1], max_model_len=512, enforce_eager=True, dtype="float32", **speculation)
    prompt = "one two three four five, one two three four five, one two three"
    texts = []
    for wishes in ({}, {"forerun_drafter": "none"}):
        settings = SamplingParams(temperature=0, max_tokens=32, extra_args=wishes)
        (answer,) = llm.generate([prompt], settings)
        texts.append(answer.outputs[0].text)
    print(texts[0])
    print("the same words without guesses:", texts[0] == texts[1])


if __name__ == "__main__":
    main()
