"""What one request may ask of speculation: how far, who guesses, or nothing at all.

forerun serve MODEL --served-model-name m --port 8000
python examples/serving/per_request.py http://localhost:8000/v1
"""

import sys

from openai import BadRequestError, OpenAI

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="none")


def ask(**wishes: object) -> tuple[str, int]:
    """An answer, and how many guesses stood on the way."""
    answer = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Count from one to twelve, three times over."}],
        temperature=0.7,
        seed=7,
        max_tokens=48,
        extra_body={"vllm_xargs": wishes},
    )
    metrics = (answer.model_extra or {})["metrics"]["speculative_decoding"]
    return answer.choices[0].message.content or "", metrics["num_accepted_draft_tokens"]


plain, _ = ask(forerun_drafter="none")
for wishes in ({}, {"forerun_max_draft": 2}, {"forerun_drafter": "ngram"}):
    words, stood = ask(**wishes)
    print(f"{wishes!s:30} {stood:3} guesses stood; the same words: {words == plain}")

try:
    ask(forerun_max_draft=-1)
except BadRequestError as error:
    print(f"refused: {error.message}")
