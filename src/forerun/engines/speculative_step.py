"""A step from its drafts to their outcome, as the `Speculator` and its engine share it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from forerun.config import PREDICTION
from forerun.control.step import Step
from forerun.drafters.tree_merge import verdict_for, verified_part
from forerun.engines.guarded_drafter import EMPTY_DRAFT, as_chosen
from forerun.types import BoolArray, Draft, IntArray, RequestView, Tokens, Verdict

_NO_TOKENS: BoolArray = np.zeros(0, dtype=bool)


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request to draft for: at most `max_tokens` draft tokens, from `drafters` or else the default ones.

    `adaptive` overrides the engine's setting.
    """

    view: RequestView
    max_tokens: int
    drafters: tuple[str, ...] | None = None
    greedy: bool = True
    adaptive: bool | None = None

    @property
    def name(self) -> str:
        """The request's id."""
        return self.view.id

    @property
    def has_chosen_drafts(self) -> bool:
        """Whether draft tokens are chosen, not sampled, so that the controller may drop some of them."""
        return self.greedy or not self.view.sampling.unseeded


def drafters_of(
    named: tuple[str, ...] | None,
    prediction: Tokens | None,
    drafters: Collection[str],
    default: Sequence[str],
) -> tuple[str, ...] | None:
    """The drafters of a request that names some or, with None, uses the default ones of an engine.

    A prediction adds its own drafter to the default ones, if the engine has it.
    """
    if named is None and prediction is not None and PREDICTION in drafters:
        return (*default, PREDICTION)
    return named


@dataclass(slots=True)
class SpeculativeStep:
    """A step from its drafts to their outcome. Lists have one entry per request, in the order of `requests`.

    `proposals` are the drafts by drafter, `drafts` the ones to verify. `verdicts` is None, and `num_verified`
    0, where the engine has not verified the draft. Leading tokens were verified, or with a mask in
    `verified_nodes` those under it. `outcomes` has, by drafter, the verified part of its own
    draft and the verdict on that part. `first_tokens` are those of the drafts before any was left out, -1 for
    none and for sampled ones. `wants_logits` are the requests, by index, whose drafters learn from the
    target's logits. `paths` are the nodes of the root-to-leaf paths of a request's draft, where an engine
    verifies trees as paths.
    """

    control: Step
    requests: Sequence[DraftRequest]
    proposals: list[dict[str, Draft]] = field(init=False)
    drafts: list[Draft] = field(init=False)
    verdicts: list[Verdict | None] = field(init=False)
    verified_nodes: list[BoolArray | None] = field(init=False)
    num_verified: list[int] = field(init=False)
    outcomes: list[dict[str, tuple[Draft, Verdict]]] = field(init=False)
    first_tokens: list[int] = field(default_factory=list)
    wants_logits: frozenset[int] = frozenset()
    paths: dict[str, list[list[int]]] = field(default_factory=dict)
    _indices: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        num = len(self.requests)
        self.proposals = [{} for _ in range(num)]
        self.drafts = [EMPTY_DRAFT] * num
        self.verdicts = [None] * num
        self.verified_nodes = [None] * num
        self.num_verified = [0] * num
        self.outcomes = [{} for _ in range(num)]
        self._indices = {request.name: index for index, request in enumerate(self.requests)}

    @property
    def has_prediction(self) -> bool:
        """Whether any request has a predicted output."""
        return any(request.view.prediction is not None for request in self.requests)

    def with_predictions(self, should_draft: BoolArray) -> BoolArray:
        """The mask with the requests that have a predicted output.

        They are looked up in every step, whatever lookups for others gain. Their matches end a suspension of
        drafting that other requests caused.
        """
        if not self.has_prediction or self.control.is_baseline:
            return should_draft
        return should_draft | [request.view.prediction is not None for request in self.requests]

    def room(self, index: int, num_drafters: int = 1) -> int:
        """The draft tokens that a tree has room for beside those sampled already, which all stay in it.

        Sampling drafters share it: `num_drafters` of them are still to draft.
        """
        request = self.requests[index]
        num_sampled = sum(len(draft) for draft in self.proposals[index].values() if draft.q)
        return (request.max_tokens - num_sampled) // (1 if request.has_chosen_drafts else num_drafters)

    def index(self, name: str) -> int | None:
        """The position of a request in this step; None if the step does not decode it."""
        return self._indices.get(name)

    def draft_of(self, name: str) -> Draft:
        """The draft of a request of this step."""
        return self.drafts[self._indices[name]]

    def record_verdict(
        self, index: int, verdict: Verdict, num_verified: int | None = None, nodes: BoolArray | None = None
    ) -> None:
        """Set the verdict on a request's draft.

        Its leading `num_verified` tokens were verified, or with a mask the `nodes` under it.
        """
        num = len(self.drafts[index])
        self.verdicts[index] = verdict
        if nodes is not None and not nodes.all():
            self.verified_nodes[index], num_verified = nodes, int(nodes.sum())
        self.num_verified[index] = num if num_verified is None else min(num_verified, num)
        verified, proposals = self.verified(index), self.proposals[index]
        only = next(iter(proposals)) if len(proposals) == 1 else None
        if only is not None and _is_chain_of(only, verified):
            self.outcomes[index][only] = verified, verdict
            return
        output = verdict.tokens(self.drafts[index])
        for name, proposed in proposals.items():
            part = verified_part(proposed, verified)
            if len(part):
                self.outcomes[index][name] = part, verdict_for(part, output)

    def verified(self, index: int) -> Draft:
        """The part of a request's draft that was verified."""
        draft, num_verified = self.drafts[index], self.num_verified[index]
        if (nodes := self.verified_nodes[index]) is not None:
            return as_chosen(draft).select(nodes)
        if num_verified == len(draft):
            return draft
        return as_chosen(draft).truncate(num_verified)  # sampled tokens may be left out of statistics

    def outcomes_of(self, drafter: str) -> tuple[IntArray, IntArray]:
        """The verified depth of a drafter's draft for each request, and its number of accepted tokens."""
        lengths, num_accepted = np.zeros((2, len(self.requests)), dtype=np.int64)
        for index, outcomes in enumerate(self.outcomes):
            if drafter in outcomes:
                part, verdict = outcomes[drafter]
                lengths[index], num_accepted[index] = part.depth, len(verdict.accepted)
        return lengths, num_accepted

    def keep_first_tokens(self) -> None:
        """Keep the first tokens of the drafts, before the controller leaves any out."""
        self.first_tokens = [
            int(draft.tokens[0]) if len(draft) and not draft.sampled[0] else -1 for draft in self.drafts
        ]

    def first_token_matches(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Per class, sampled requests first: first draft tokens that were looked up, whether they were
        verified or not, and how many of them the output has.
        """
        counts = [[0, 0], [0, 0]]
        for index, token in enumerate(self.first_tokens):
            verdict = self.verdicts[index]
            if token >= 0 and verdict is not None:
                draft, accepted = self.drafts[index], verdict.accepted
                emitted = int(draft.tokens[accepted[0]]) if accepted else verdict.next_token
                own = counts[self.requests[index].greedy]
                own[0] += 1
                own[1] += emitted == token
        (first, second), (third, fourth) = counts
        return (first, second), (third, fourth)

    def outcome_masks(self) -> tuple[BoolArray, BoolArray]:
        """Masks over the draft tokens of all requests: the accepted ones, and the verified ones."""
        if not any(map(len, self.drafts)):
            return _NO_TOKENS, _NO_TOKENS
        accepted_nodes: list[int] = []
        verified_nodes: list[Sequence[int]] = []
        start = 0
        for draft, verdict, num_verified, nodes in zip(
            self.drafts, self.verdicts, self.num_verified, self.verified_nodes, strict=True
        ):
            if verdict is not None and len(draft):
                accepted_nodes += [start + node for node in verdict.accepted]
                some = range(num_verified) if nodes is None else np.flatnonzero(nodes).tolist()
                verified_nodes.append([start + node for node in some])
            start += len(draft)
        accepted, verified = np.zeros(start, dtype=bool), np.zeros(start, dtype=bool)
        accepted[accepted_nodes] = True
        verified[[*chain.from_iterable(verified_nodes)]] = True
        return accepted, verified


def _is_chain_of(drafter: str, draft: Draft) -> bool:
    """Whether a draft is a chain of chosen tokens, all of which this drafter proposed."""
    num = len(draft)
    return 0 < num == draft.source.count(drafter) and draft.is_chain and not draft.sampled.any()
