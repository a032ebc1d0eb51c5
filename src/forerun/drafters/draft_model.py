"""The draft model: a smaller model of the same vocabulary that says what it would say next.

It has a KV cache of its own, filled when it is first asked and never before. It may lag behind: what was
said since, and the last guess of a round, which it never read, are read when it is asked again; what it read
and was not said is dropped then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from forerun.core import arrays
from forerun.core.acceptance import sample_inverse_cdf
from forerun.core.batch_sampling import BatchSampling
from forerun.core.exponential_race import exponential_race_rows
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.logits_warper import probabilities
from forerun.core.noise import signed
from forerun.core.tensors import torch
from forerun.drafters.tree_merge import descend
from forerun.errors import ConfigurationError
from forerun.models.runner import COMMITTED, InputRows, Runner
from forerun.types import ROOT, Draft, IntArray, Proposal, RequestView, Verdict

NAME: Final = "model"

CHUNK: Final = 256
"""Tokens of a prompt that are read at a time."""

_NOTHING: Final = Draft.chain([])


@dataclass(slots=True)
class _Text:
    """A request's text as the draft model knows it: its slot, and the rows read since the last round."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


class ModelDrafter:
    """Guesses what a model says, over the target's vocabulary of `vocab_size` tokens.

    Greedy requests get the most likely tokens: a chain, or with `branches` a tree. Requests with a seed get
    what the draft says with the noise of each position, which is often what the target says with it. Others
    get a chain drawn from q, and q with it; `draw` is where those draws come from.
    """

    def __init__(
        self, runner: Runner, vocab_size: int, *, branches: int = 1, draw: np.random.Generator | None = None
    ) -> None:
        if branches < 1:
            raise ConfigurationError(f"branches is {branches}; a chain has 1")
        self.runner = runner
        self.vocab_size = vocab_size
        self.branches = branches
        self.draw = draw or np.random.default_rng()
        self._texts: dict[str, _Text] = {}

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per view; nothing for those that no slot is left for, or that are too long."""
        drafts = [_NOTHING] * len(views)
        room = [self._room(view, budget) for view, budget in zip(views, budgets, strict=True)]
        asked = [i for i, most in enumerate(room) if most > 0]
        if asked:
            logits = self._catch_up([views[i] for i in asked])
            trees = [i for i in asked if self.branches > 1 and views[i].sampling.greedy]
            chains = [i for i in asked if i not in trees]
            at = {i: row for row, i in enumerate(asked)}
            for some, guess in ((chains, self._chains), (trees, self._trees)):
                if some:
                    rows = logits[[at[i] for i in some]]
                    for i, draft in zip(
                        some, guess([views[i] for i in some], [room[i] for i in some], rows), strict=True
                    ):
                        drafts[i] = draft
        return drafts

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Nothing: what was said shows in the request's tokens."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Give the request's slot back."""
        text = self._texts.pop(id, None)
        if text is not None:
            self.runner.free(text.slot)

    def _room(self, view: RequestView, budget: int) -> int:
        """How many guesses there is room for; the last is never read."""
        most = min(budget, self.runner.max_length - len(view.tokens))
        if most <= 0:
            return 0
        text = self._texts.get(view.id)
        if text is not None and self.runner.length(text.slot) >= len(view.tokens):  # another request's old id
            self.forget(view.id)
            text = None
        if text is None:
            if not self.runner.cache.num_free:
                return 0
            self._texts[view.id] = _Text(self.runner.allocate())
        return most

    def _catch_up(self, views: Sequence[RequestView]) -> torch.Tensor:
        """Read what was said since, and return the logits of what comes next."""
        unread: list[list[int]] = []
        for view in views:
            text = self._texts[view.id]
            said = [int(token) for token in view.tokens[self.runner.length(text.slot) :]]
            path = descend(text.parents, text.tokens, said[:-1])
            self.runner.commit({text.slot: path})
            text.tokens, text.parents = [], []
            unread.append(said[len(path) :])
        slots = [self._texts[view.id].slot for view in views]
        while any(len(tokens) > CHUNK for tokens in unread):
            late = [i for i, tokens in enumerate(unread) if len(tokens) > CHUNK]
            self.runner.forward([InputRows(slots[i], unread[i][:CHUNK], num_logits=0) for i in late])
            self.runner.commit({slots[i]: range(CHUNK) for i in late})
            for i in late:
                del unread[i][:CHUNK]
        logits = self.runner.forward(
            [InputRows(slot, tokens) for slot, tokens in zip(slots, unread, strict=True)]
        )
        self.runner.commit({slot: range(len(tokens)) for slot, tokens in zip(slots, unread, strict=True)})
        return self._fitted(logits)

    def _fitted(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits over the target's vocabulary: the two may differ by padding."""
        missing = self.vocab_size - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits.float(), (0, missing), value=-torch.inf)
        return logits[:, : self.vocab_size].float()

    def _chains(
        self, views: Sequence[RequestView], budgets: Sequence[int], logits: torch.Tensor
    ) -> list[Draft]:
        """A chain for each request, all of them a token at a time; the numbers were fixed before."""
        tokens: list[list[int]] = [[] for _ in views]
        proposals: list[list[Proposal]] = [[] for _ in views]
        chances: list[list[float]] = [[] for _ in views]
        going = list(range(len(views)))
        while going:
            some = [views[i] for i in going]
            said, q = self._say(some, [tokens[i] for i in going], logits)
            likely = q[torch.arange(len(going)), torch.from_numpy(said)].tolist()
            for row, i in enumerate(going):
                tokens[i].append(int(said[row]))
                proposals[i].append(Proposal(q[row]))
                chances[i].append(likely[row])
            going = [i for i in going if len(tokens[i]) < budgets[i]]
            if going:
                logits = self._read(
                    [(self._texts[views[i].id], tokens[i][-1:], [len(tokens[i]) - 2]) for i in going]
                )
        return [
            Draft.chain(
                tokens[i],
                q=() if view.sampling.greedy or view.sampling.seed is not None else proposals[i],
                source=NAME,
                evidence=np.cumprod(chances[i], dtype=np.float32)[:, None],
            )
            for i, view in enumerate(views)
        ]

    def _say(
        self, views: Sequence[RequestView], before: Sequence[Sequence[int]], logits: torch.Tensor
    ) -> tuple[IntArray, torch.Tensor]:
        """The next guess of each request and what it was taken from."""
        settings = BatchSampling.of([view.sampling for view in views])
        contexts = [
            RowContext(_history(view), path) if view.sampling.looks_back else RowContext()
            for view, path in zip(views, before, strict=True)
        ]
        greedy = np.flatnonzero(settings.greedy)
        said = np.empty(len(views), dtype=np.int64)
        q = torch.empty_like(logits)
        if len(greedy):
            ruled = logits.clone()
            apply_logits_processors(ruled, settings, contexts)
            said[greedy] = arrays.first_largest(ruled, greedy)
            q[greedy] = torch.softmax(ruled[greedy], dim=-1)  # how sure it is, for the survival
        others = np.flatnonzero(~settings.greedy)
        if len(others):
            q[others] = probabilities(logits[others], settings[others], [contexts[i] for i in others])
        seeds = {i: seed for i in others.tolist() if (seed := views[i].sampling.seed) is not None}
        if seeded := list(seeds):
            keys = np.array([signed(seed) for seed in seeds.values()], dtype=np.int64)
            positions = np.array([len(views[i].tokens) + len(before[i]) for i in seeded])
            said[seeded] = exponential_race_rows(q[seeded], keys, positions)
        if drawn := [i for i in others.tolist() if i not in seeds]:
            said[drawn] = sample_inverse_cdf(q[drawn], self.draw.random(len(drawn)))
        return said, q

    def _read(self, guesses: Sequence[tuple[_Text, list[int], list[int]]]) -> torch.Tensor:
        """Read guesses, tokens and their parents, behind each text; a row of logits for each."""
        rows = [
            InputRows(text.slot, tokens, np.array(parents), num_logits=len(tokens))
            for text, tokens, parents in guesses
        ]
        logits = self._fitted(self.runner.forward(rows))
        for text, tokens, parents in guesses:
            text.tokens += tokens
            text.parents += parents
        return logits

    def _trees(
        self, views: Sequence[RequestView], budgets: Sequence[int], logits: torch.Tensor
    ) -> list[Draft]:
        """A tree for each request, level by level; each level goes on from its `branches` best nodes."""
        trees = [_Beam(self.branches, budget) for budget in budgets]
        going = list(range(len(views)))
        while going:
            rows = torch.split(torch.softmax(logits, dim=-1), [len(trees[i].front) for i in going])
            for i, q in zip(going, rows, strict=True):
                trees[i].grow(q)
            going = [i for i in going if trees[i].front]
            if going:
                logits = self._read([(self._texts[views[i].id], *trees[i].unread()) for i in going])
        return [tree.draft() for tree in trees]


def _history(view: RequestView) -> TokenHistory:
    num_prompt = view.num_prompt or 0
    return TokenHistory(list(view.tokens[:num_prompt]), list(view.tokens[num_prompt:]))


class _Beam:
    """A tree that grows from its most likely nodes, as long as that can change which nodes are the best."""

    def __init__(self, branches: int, budget: int) -> None:
        self.branches = branches
        self.budget = budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.survival: list[float] = []
        self.front: list[int] = [ROOT]
        self._levels = -(-budget // branches)
        self._rows: dict[int, int] = {ROOT: COMMITTED}

    def grow(self, q: torch.Tensor) -> None:
        """Add the children of the front, whose distributions these are, and move on to the best of them."""
        chances, tokens = (each.tolist() for each in q.topk(min(self.branches, q.shape[1]), dim=-1))
        first = len(self.tokens)
        for place, node in enumerate(self.front):
            above = 1.0 if node == ROOT else self.survival[node]
            for chance, token in zip(chances[place], tokens[place], strict=True):
                self.tokens.append(token)
                self.parents.append(node)
                self.survival.append(above * chance)
        new = sorted(range(first, len(self.tokens)), key=lambda node: -self.survival[node])
        self._levels -= 1
        room = self.budget - len(self._rows) if self._levels else 0
        self.front = [node for node in new[: min(self.branches, room)] if self.survival[node] > self._least()]

    def _least(self) -> float:
        """What a new node has to be more likely than to be among the best."""
        if len(self.tokens) < self.budget:
            return 0.0
        return sorted(self.survival, reverse=True)[self.budget - 1]

    def unread(self) -> tuple[list[int], list[int]]:
        """The tokens of the front, and behind which rows they are read."""
        parents = [self._rows[self.parents[node]] for node in self.front]
        for node in self.front:
            self._rows[node] = len(self._rows) - 1
        return [self.tokens[node] for node in self.front], parents

    def draft(self) -> Draft:
        """The best nodes; a parent is always at least as likely as its children."""
        order = sorted(range(len(self.tokens)), key=lambda node: -self.survival[node])[: self.budget]
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
        return Draft(
            tokens=np.array([self.tokens[node] for node in order], dtype=np.int64),
            parents=np.array([place[self.parents[node]] for node in order], dtype=np.int64),
            sampled=np.zeros(len(order), dtype=bool),
            source=(NAME,) * len(order),
            evidence=np.array([[self.survival[node]] for node in order], dtype=np.float32),
        )
