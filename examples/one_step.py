"""One speculative step by hand: draft three tokens, verify them with a target, print what is committed.

The target is a table of logits here. In an engine it is one forward pass over the last committed token and
the draft tokens, which gives one row of logits for each.
"""

import torch

from forerun import Draft, Proposal, SamplingParams
from forerun.core.verify import VerifyRequest, verify

VOCAB_SIZE, NUM_DRAFT_TOKENS = 32, 3
torch.manual_seed(1)

# The draft: three tokens, each sampled from its own q. Pass on the q that was sampled from.
q = torch.softmax(2 * torch.randn(NUM_DRAFT_TOKENS, VOCAB_SIZE), dim=-1)
tokens = torch.multinomial(q, 1)[:, 0].tolist()
draft = Draft.chain(tokens, q=[Proposal(row) for row in q])

# The target: one row more than there are draft tokens, with p close to q.
draft_rows = q.log() + 0.5 * torch.randn(NUM_DRAFT_TOKENS, VOCAB_SIZE)
logits = torch.cat([draft_rows, torch.randn(1, VOCAB_SIZE)])

# key: the request's seed, or a private number. length: its number of tokens so far.
(verdict,) = verify([VerifyRequest(draft, SamplingParams(temperature=0.8), key=7, length=100)], logits)

print(f"drafted   {tokens}")
print(f"committed {verdict.tokens(draft)}: {len(verdict.accepted)} accepted, then one more token")
