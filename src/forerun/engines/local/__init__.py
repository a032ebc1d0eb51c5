"""Continuous batching on transformers' models: admit, guess, read, judge, commit.

- `request`: what is asked for, and what comes back
- `ending`: when an answer is over; `sequence`: a request on its way
- `guessing`: who guesses for whom, into one tree, as far as it pays
- `judging`: which guesses stand, and whose logits are broken
- `engine`: `step()`, which is all of it
- `llm`: `generate` and `LLM`, for people
- `startup`: one-time work of a first run, logged
- `trace`, `stories`, `page`: what happened, round by round: written as lines, read back, drawn
"""
