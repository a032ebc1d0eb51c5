"""The draft-model drafter: a smaller model with the target's vocabulary.

It has its own KV cache, filled when a draft is first requested. The cache may lag behind. Each call prefills
the tokens committed since, and the last draft token of the previous step, which never went through the model.
It truncates rejected draft tokens from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from forerun.core import arrays
from forerun.core.acceptance import sample_inverse_cdf
from forerun.core.batch_sampling import BatchSampling
from forerun.core.exponential_race import exponential_race_rows
from forerun.core.logits_processors import RowContext, TokenHistory
from forerun.core.logits_warper import probabilities
from forerun.core.noise import signed
from forerun.core.tensors import torch
from forerun.drafters.beam_tree import BeamTree
from forerun.drafters.draft_chain import DraftChain
from forerun.drafters.draft_rows import DraftRows, processed_logits
from forerun.drafters.sampled_tree import SampledTree, SiblingRates, tree_shape
from forerun.drafters.tree_merge import descend
from forerun.errors import ConfigurationError
from forerun.models.input_rows import InputRows
from forerun.models.runner import Runner
from forerun.types import Draft, IntArray, RequestView, Verdict

NAME: Final = "model"

PREFILL_CHUNK: Final = 256
"""Prompt tokens per prefill chunk."""

_EMPTY_DRAFT: Final = Draft.chain([])


@dataclass(slots=True)
class _DraftState:
    """Draft model state of a request: its slot, and the draft tokens computed since the last step."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


class ModelDrafter:
    """Drafts with a model over the target's vocabulary of `vocab_size` tokens.

    Greedy requests get the most likely tokens: a chain, or with `branches` a tree. Requests with a seed get
    the draft model's own tokens under the noise of each position, which often equal the target's. Other
    requests get tokens sampled from q, with q attached: a chain, or with `branches` a tree of as many nodes;
    `rng` supplies the randomness. q is the draft model's distribution after the request's sampling settings;
    penalties count the draft tokens before a position.
    """

    def __init__(
        self, runner: Runner, vocab_size: int, *, branches: int = 1, rng: np.random.Generator | None = None
    ) -> None:
        if branches < 1:
            raise ConfigurationError(f"branches is {branches}; expected at least 1, which makes a chain")
        self.runner = runner
        self.vocab_size = vocab_size
        self.branches = branches
        self.rng = rng or np.random.default_rng()
        self._states: dict[str, _DraftState] = {}
        self._sibling_rates = SiblingRates()

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per view; empty where no slot is free or the request is too long."""
        drafts = [_EMPTY_DRAFT] * len(views)
        max_lengths = [self._capacity(view, budget) for view, budget in zip(views, budgets, strict=True)]
        drafting = [i for i, capacity in enumerate(max_lengths) if capacity > 0]
        if drafting:
            logits = self._catch_up([views[i] for i in drafting])
            sampled = {i for i in drafting if views[i].sampling.unseeded}
            chains = drafting if self.branches == 1 else []
            trees = [i for i in drafting if self.branches > 1 and i not in sampled]
            sampled_trees = [i for i in drafting if self.branches > 1 and i in sampled]
            row_of = {i: row for row, i in enumerate(drafting)}
            kinds = ((chains, self._chains), (trees, self._trees), (sampled_trees, self._sampled_trees))
            for some, draft_some in kinds:
                if some:
                    rows = logits[[row_of[i] for i in some]]
                    for i, draft in zip(
                        some,
                        draft_some([views[i] for i in some], [max_lengths[i] for i in some], rows),
                        strict=True,
                    ):
                        drafts[i] = draft
        return drafts

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002, ARG002
        """Learn which siblings of sampled trees are accepted; committed tokens appear in the view."""
        if self.branches > 1 and draft.sampled.any():
            self._sibling_rates.learn(draft, verdict)

    def forget(self, id: str) -> None:  # noqa: A002
        """Free the slot of a request."""
        state = self._states.pop(id, None)
        if state is not None:
            self.runner.free(state.slot)

    def _capacity(self, view: RequestView, budget: int) -> int:
        """Maximum draft length of a request, allocating its slot on first use. The last draft token never
        enters the cache.
        """
        capacity = min(budget, self.runner.max_length - len(view.tokens))
        if capacity <= 0:
            return 0
        state = self._states.get(view.id)
        if state is not None and self.runner.length(state.slot) >= len(view.tokens):  # a reused id
            self.forget(view.id)
            state = None
        if state is None:
            if not self.runner.cache.num_free:
                return 0
            self._states[view.id] = _DraftState(self.runner.allocate())
        return capacity

    def _catch_up(self, views: Sequence[RequestView]) -> torch.Tensor:
        """Compute the tokens committed since the last call, and return the logits of the next token."""
        pending: list[list[int]] = []
        for view in views:
            state = self._states[view.id]
            new_tokens = [int(token) for token in view.tokens[self.runner.length(state.slot) :]]
            path = descend(state.parents, state.tokens, new_tokens[:-1])
            self.runner.commit({state.slot: path})
            state.tokens, state.parents = [], []
            pending.append(new_tokens[len(path) :])
        slots = [self._states[view.id].slot for view in views]
        while any(len(tokens) > PREFILL_CHUNK for tokens in pending):
            long = [i for i, tokens in enumerate(pending) if len(tokens) > PREFILL_CHUNK]
            self.runner.forward([InputRows(slots[i], pending[i][:PREFILL_CHUNK], num_logits=0) for i in long])
            self.runner.commit({slots[i]: range(PREFILL_CHUNK) for i in long})
            for i in long:
                del pending[i][:PREFILL_CHUNK]
        logits = self.runner.forward(
            [InputRows(slot, tokens) for slot, tokens in zip(slots, pending, strict=True)]
        )
        self.runner.commit({slot: range(len(tokens)) for slot, tokens in zip(slots, pending, strict=True)})
        return self._fit_vocabulary(logits)

    def _fit_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        """Pad or cut logits to the target's vocabulary; the two may differ by padding."""
        missing = self.vocab_size - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits.float(), (0, missing), value=-torch.inf)
        return logits[:, : self.vocab_size].float()

    def _chains(
        self, views: Sequence[RequestView], budgets: Sequence[int], logits: torch.Tensor
    ) -> list[Draft]:
        """One chain per request, one token per forward pass. `budgets` fixes the lengths beforehand."""
        chains = [DraftChain() for _ in views]
        active = list(range(len(views)))
        while active:
            self._extend([views[i] for i in active], [chains[i] for i in active], logits)
            active = [i for i in active if len(chains[i].tokens) < budgets[i]]
            if active:
                logits = self._forward_last([views[i] for i in active], [chains[i] for i in active])
        return [self._finish(view, chain) for view, chain in zip(views, chains, strict=True)]

    def _forward_last(self, views: Sequence[RequestView], chains: Sequence[DraftChain]) -> torch.Tensor:
        """Run the last token of each chain through the model."""
        return self._forward_drafts(
            [
                (self._states[view.id], chain.tokens[-1:], [len(chain.tokens) - 2])
                for view, chain in zip(views, chains, strict=True)
            ]
        )

    def _finish(self, view: RequestView, chain: DraftChain) -> Draft:
        """The draft of a finished chain."""
        return chain.draft(view, NAME)

    def _extend(
        self, views: Sequence[RequestView], chains: Sequence[DraftChain], logits: torch.Tensor
    ) -> None:
        """Draw the next token of each chain from its row of logits."""
        tokens, q = self._sample_next(views, [chain.path for chain in chains], logits)
        for row, (chain, token) in enumerate(zip(chains, tokens.tolist(), strict=True)):
            chain.append(token, q[row])

    def _sample_next(
        self, views: Sequence[RequestView], before: Sequence[Sequence[int]], logits: torch.Tensor
    ) -> tuple[IntArray, torch.Tensor]:
        """Next draft token of each request, and its distribution q."""
        settings = BatchSampling.of([view.sampling for view in views])
        contexts = [
            RowContext(_history(view), path) if view.sampling.looks_back else RowContext()
            for view, path in zip(views, before, strict=True)
        ]
        greedy = np.flatnonzero(settings.greedy)
        next_tokens = np.empty(len(views), dtype=np.int64)
        q = torch.empty_like(logits)
        if len(greedy):
            processed = processed_logits(logits, settings, contexts)
            next_tokens[greedy] = arrays.finite_argmax(processed, greedy)
            q[greedy] = torch.softmax(processed[greedy], dim=-1)  # its confidence, for the survival
        others = np.flatnonzero(~settings.greedy)
        if len(others):
            q[others] = probabilities(logits[others], settings[others], [contexts[i] for i in others])
        seeds = {i: seed for i in others.tolist() if (seed := views[i].sampling.seed) is not None}
        if seeded := list(seeds):
            keys = np.array([signed(seed) for seed in seeds.values()], dtype=np.int64)
            positions = np.array([len(views[i].tokens) + len(before[i]) for i in seeded])
            next_tokens[seeded] = exponential_race_rows(q[seeded], keys, positions)
        if unseeded := [i for i in others.tolist() if i not in seeds]:
            next_tokens[unseeded] = sample_inverse_cdf(q[unseeded], self.rng.random(len(unseeded)))
        return next_tokens, q

    def _forward_drafts(self, drafts: Sequence[tuple[_DraftState, list[int], list[int]]]) -> torch.Tensor:
        """Run draft tokens with their parents through the model; one row of logits for each."""
        rows = [
            InputRows(state.slot, tokens, np.array(parents), num_logits=len(tokens))
            for state, tokens, parents in drafts
        ]
        logits = self._fit_vocabulary(self.runner.forward(rows))
        for state, tokens, parents in drafts:
            state.tokens += tokens
            state.parents += parents
        return logits

    def _trees(
        self, views: Sequence[RequestView], budgets: Sequence[int], logits: torch.Tensor
    ) -> list[Draft]:
        """One tree of chosen tokens per request; each level extends the `branches` most likely nodes."""
        trees = [BeamTree(self.branches, budget) for budget in budgets]
        return self._grow(views, trees, logits, DraftRows.confidences)

    def _sampled_trees(
        self, views: Sequence[RequestView], budgets: Sequence[int], logits: torch.Tensor
    ) -> list[Draft]:
        """One sampled tree per request; `budgets` fixes the shapes beforehand."""
        probs = self._sibling_rates.probs
        trees = [SampledTree(*tree_shape(budget, probs), self.rng) for budget in budgets]
        return self._grow(views, trees, logits, DraftRows.distributions)

    def _grow(
        self,
        views: Sequence[RequestView],
        trees: Sequence[BeamTree | SampledTree],
        logits: torch.Tensor,
        distributions: Callable[[DraftRows, torch.Tensor], torch.Tensor],
    ) -> list[Draft]:
        """Grow one tree per request, level by level, with a forward pass between two levels."""
        histories = [_history(view) if view.sampling.looks_back else TokenHistory() for view in views]
        active = [i for i, tree in enumerate(trees) if tree.frontier]
        while active:
            nodes = [(i, trees[i].path(node)) for i in active for node in trees[i].frontier]
            rows = DraftRows(
                BatchSampling.of([views[i].sampling for i, _ in nodes]),
                [RowContext(histories[i], path) for i, path in nodes],
                np.array([len(views[i].tokens) + len(path) for i, path in nodes]),
                [views[i].sampling.seed for i, _ in nodes],
            )
            q = torch.split(distributions(rows, logits), [len(trees[i].frontier) for i in active])
            for i, q_rows in zip(active, q, strict=True):
                trees[i].grow(q_rows)
            active = [i for i in active if trees[i].frontier]
            if active:
                logits = self._forward_drafts(
                    [(self._states[views[i].id], *trees[i].next_rows()) for i in active]
                )
        return [tree.draft(NAME) for tree in trees]


def _history(view: RequestView) -> TokenHistory:
    num_prompt = view.num_prompt or 0
    return TokenHistory(list(view.tokens[:num_prompt]), list(view.tokens[num_prompt:]))
