"""Tenants that share a server and no text: each sends its own `cache_salt`.

Outputs are drafted from within one salt only. Without --share-outputs they are not drafted from at all.

forerun serve MODEL --served-model-name m --port 8000 --share-outputs
python examples/serving/tenants.py http://localhost:8000/v1
"""

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="none")


def ask(tenant: str, question: str) -> tuple[str, int]:
    """The answer for a tenant, and its number of accepted draft tokens.

    A gateway sets the salt by the client that it has authenticated, and never takes it from the request.
    """
    completion = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=32,
        extra_body={"cache_salt": f"secret of {tenant}"},
    )
    metrics = (completion.model_extra or {})["metrics"]["speculative_decoding"]
    return completion.choices[0].message.content or "", metrics["num_accepted_draft_tokens"]


question = "Name three rivers in Europe, and one fact about each."
first, _ = ask("anna", question)
for tenant in ("anna", "ben"):
    answer, num_accepted = ask(tenant, question)
    print(f"{tenant}: {num_accepted} draft tokens accepted; identical output: {answer == first}")
