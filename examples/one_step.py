"""One speculative step by hand: guess three tokens, let a target judge them, see what stands.

The target here is a table of logits; in an engine it is one forward pass over the last committed token and
the guesses, which gives a row of logits for each.
"""

import torch

from forerun import Draft, Proposal, SamplingParams
from forerun.core.verify import VerifyRequest, verify

VOCAB, GUESSES = 32, 3
torch.manual_seed(1)

# The draft: three tokens, each drawn from a q of its own. Keep the q that was drawn from.
q = torch.softmax(2 * torch.randn(GUESSES, VOCAB), dim=-1)
tokens = torch.multinomial(q, 1)[:, 0].tolist()
draft = Draft.chain(tokens, q=[Proposal(row) for row in q])

# The target: one row more than there are guesses, and not far from the draft.
logits = torch.cat([q.log() + 0.5 * torch.randn(GUESSES, VOCAB), torch.randn(1, VOCAB)])

# key: the request's seed, or a private number. length: how many tokens it has so far.
(verdict,) = verify([VerifyRequest(draft, SamplingParams(temperature=0.8), key=7, length=100)], logits)

print(f"guessed   {tokens}")
print(f"committed {verdict.tokens(draft)}: {len(verdict.accepted)} guesses kept, then one more token")
