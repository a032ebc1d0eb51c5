"""Speculation options of a request: maximum draft length, drafter, or no speculation.

forerun serve MODEL --served-model-name m --port 8000
python examples/serving/per_request.py http://localhost:8000/v1
"""

import sys

from openai import BadRequestError, OpenAI

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="none")


def complete(**options: object) -> tuple[str, int]:
    """The output of a request with these options, and its number of accepted draft tokens."""
    completion = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Count from one to twelve, three times over."}],
        temperature=0.7,
        seed=7,
        max_tokens=48,
        extra_body={"vllm_xargs": options},
    )
    metrics = (completion.model_extra or {})["metrics"]["speculative_decoding"]
    return completion.choices[0].message.content or "", metrics["num_accepted_draft_tokens"]


baseline, _ = complete(forerun_drafter="none")
for options in ({}, {"forerun_max_draft": 2}, {"forerun_drafter": "ngram"}):
    text, num_accepted = complete(**options)
    print(f"{options!s:30} {num_accepted:3} draft tokens accepted; identical output: {text == baseline}")

try:
    complete(forerun_max_draft=-1)
except BadRequestError as error:
    print(f"rejected: {error.message}")
