"""A third engine: one decoder of a deterministic language, on the shared `Speculator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forerun.control.step_cost import StepCost
from forerun.drafters.tree_merge import descend
from forerun.engines.guarded_drafter import DrafterTotals, DraftFormat
from forerun.engines.speculative_step import DraftRequest
from forerun.engines.speculator import Speculator
from forerun.types import Draft, Drafter, RequestView, Verdict

VOCAB = 50
CHEAP_ROWS = StepCost((1, 65), (1.0, 1.01), prior_variance=0.0)
"""Step costs at which every likely draft token pays."""


def target_token(tokens: Sequence[int]) -> int:
    """The greedy token of the toy target: it counts to ten, and skips two now and then."""
    return (tokens[-1] + (3 if len(tokens) % 23 == 0 else 1)) % 10


class ToyEngine:
    """Decodes requests greedily with drafts; `generate` returns the output, `num_steps` counts steps."""

    def __init__(self, drafters: Mapping[str, Drafter], *, trees: bool) -> None:
        self.totals = DrafterTotals()
        draft_format = DraftFormat(VOCAB, trees=trees)
        self.speculator = Speculator(drafters, CHEAP_ROWS, draft_format, counters=self.totals)
        self.verified: list[Draft] = []

    def generate(self, prompts: Mapping[str, Sequence[int]], num_tokens: int) -> dict[str, list[int]]:
        texts = {name: list(prompt) for name, prompt in prompts.items()}
        ends = {name: len(prompt) + num_tokens for name, prompt in prompts.items()}
        while unfinished := [name for name, text in texts.items() if len(text) < ends[name]]:
            self._step({name: texts[name] for name in unfinished}, ends)
        for name, text in texts.items():
            self.speculator.forget(name, RequestView(name, text))
        return {name: text[len(prompts[name]) :] for name, text in texts.items()}

    def _step(self, texts: Mapping[str, list[int]], ends: Mapping[str, int]) -> None:
        requests = [
            DraftRequest(RequestView(name, text), min(8, ends[name] - len(text) - 1))
            for name, text in texts.items()
        ]
        step = self.speculator.draft(requests, rows=len(requests))
        self.speculator.choose(step)
        self.verified += step.drafts
        for (name, text), draft in zip(texts.items(), step.drafts, strict=True):
            verdict = verify(text, draft)
            text.extend(verdict.tokens(draft))
            self.speculator.observe(step, name, verdict)
        self.speculator.close(step, seconds=1.0)


def verify(text: Sequence[int], draft: Draft) -> Verdict:
    """Accept draft tokens while they equal the target's."""
    target = list(text)
    for _ in range(draft.depth + 1):
        target.append(target_token(target))
    output = target[len(text) :]
    accepted = descend(draft.parents.tolist(), draft.tokens.tolist(), output[:-1])
    return Verdict(tuple(accepted), output[len(accepted)])
