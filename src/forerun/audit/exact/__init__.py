"""Proofs of losslessness by enumeration in rational arithmetic.

The production verifiers run on Fractions, with symbolic uniforms: comparing one with a threshold splits the
run into two branches, each weighted by its exact probability. All outcomes of a step are visited, their
weights summed, and the distribution of the emitted tokens is compared with the target's for equality. There
is no sampling and no tolerance. Sabotaged verifiers (mutants) go through the same procedure and must be
caught.

`symbolic_random` (random numbers that branch), `toy_models` (small targets and drafts), `distribution`
(comparing distributions), `enumeration` (speculative steps over every outcome), `claims` (the claims to
prove), `draft_mutants`, `verifier_mutants` and `mutants` (the mutants to catch), `token_claims` and
`kernel_checks` (claims about tokens and about kernels), `run` (the whole audit).
"""
