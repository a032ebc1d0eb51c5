"""Verification mathematics for lossless speculative decoding.

Notation of the whole package:

- **p** is the target's distribution: the target model's logits after the request's sampling settings. Row i
  of a batch holds the distribution of the token that follows row i's token.
- **q** is the draft's distribution: a sampled draft token was sampled from it.
- **u** and **v** are uniform random numbers in [0, 1) and are always arguments. This package has no random
  state and performs no logging, timing or I/O.

The acceptance tests use only +, -, *, min, max and comparisons. The same functions therefore run on float
tensors in the engines and on rational numbers in `forerun audit exact`, which proves them lossless.

Reading order: `acceptance` (one draft token), `draft_forest` (the drafts of a batch), `target_matching`,
`rejection_sampling`, `block_verification` and `lenient_verification` (the four verifiers), `verify` (selects
the verifier of each request), `logits_warper` and `target_distribution` (from logits to p), `noise` and
`exponential_race` (sampling from the target), `theory` (expected speedups).
"""
