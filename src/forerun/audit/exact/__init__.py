"""Losslessness proved by enumeration in rational numbers.

The production verifiers run on Fractions, with uniforms that are symbols: comparing one with a threshold
splits the run in two, each half weighed by its exact length. All outcomes of a round are visited, their
weights added up, and the law of what was emitted compared with the target's for equality. No sampling, no
tolerance. A registry of sabotaged verifiers goes through the same procedure and must be caught.

`symbols` (random numbers that split), `worlds` (small targets and drafts), `law` (what equality means),
`rounds` (playing speculation over every outcome), `registry` and `mutants` (what is proved and what must be
caught), `following`, `kernels` (claims of another kind), `run` (all of it).
"""
