"""Stream a completion from a server with the `openai` client, and print its acceptance.

forerun serve MODEL --served-model-name m --port 8000     # in one terminal
python examples/serving/query.py http://localhost:8000/v1  # in another
"""

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="none")
question = "Repeat this sentence three times: The library opens at one o'clock on weekdays."

stream = client.chat.completions.create(
    model="m",
    messages=[{"role": "user", "content": question}],
    temperature=0,
    max_tokens=64,
    stream=True,
    stream_options={"include_usage": True},
)
metrics: dict[str, dict[str, int]] = {}
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    metrics = (chunk.model_extra or {}).get("metrics") or metrics

counts = metrics["speculative_decoding"]
print(f"\n\n{counts['num_accepted_draft_tokens']} of {counts['num_draft_tokens']} draft tokens accepted")
