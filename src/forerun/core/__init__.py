"""The mathematics of lossless speculation.

Throughout this room:

- **p** is the target: what the model says, after the request's sampling settings. Row i of a batch holds
  the distribution of the token that follows row i's token.
- **q** is the draft: what a sampled guess was drawn from.
- **u**, **v** are uniform numbers in [0, 1), always arguments. Nothing here draws, logs or waits.

Decisions use only +, -, *, min, max and comparison, so the same functions run on float tensors in the
engine and on rational numbers in `forerun audit exact`, which proves them.

Reading order: `decisions` (one guess), `forest` (a batch of guesses), `follow`, `reject`, `block`,
`lenient` (the four verifiers), `verify` (which one when), `warp` and `target` (from logits to p), `noise`
and `race` (the target's own draw), `theory` (what to expect).
"""
