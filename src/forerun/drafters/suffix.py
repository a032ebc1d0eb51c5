"""The suffix drafter: proposes what followed earlier occurrences of the current context.

It looks up the end of a request's text in the text itself, in outputs of earlier requests with the same salt
(off by default), and in corpora, and grows one tree from all matches. It needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Final

import numpy as np

from forerun.drafters.context_index import NUM_FREQUENT, ContextIndex
from forerun.drafters.context_lookup import append_and_look_up, look_up, look_up_own
from forerun.drafters.corpus import Corpus
from forerun.drafters.match_tree import PARENTS, TOKENS, grow_tree
from forerun.drafters.matches import CONTINUATION, MAX_MATCH, SHARED, SOURCE, Ints
from forerun.drafters.output_store import OutputStore
from forerun.drafters.recycled_logits import RecycledLogits, RecycledStore
from forerun.drafters.static_table import StaticTable
from forerun.drafters.successor_votes import VoteWeights
from forerun.drafters.tree_workspace import Workspace
from forerun.errors import ConfigurationError
from forerun.types import BoolArray, Draft, RequestView, TopTokens, Verdict

NAME: Final = "suffix"
MAX_DEPTH: Final = 64
"""Maximum depth of a draft."""

MAX_MATCHES: Final = 16
"""Maximum number of matches from the request's own text, and from each generation of the store."""

MAX_CORPUS_MATCHES: Final = 8
"""Maximum number of matches per corpus. Each costs cache misses, and 8 give as good drafts as 16."""

_EMPTY_DRAFT: Final = Draft.chain([])


class SuffixDrafter:
    """Proposes what followed earlier occurrences of the current context: a tree, or with `chain` one branch.

    `share_outputs` stores up to `store_tokens` tokens of outputs for later requests with the same salt.
    `corpora` serve all requests. A request's own text is indexed up to `max_tokens`; beyond that its older
    half is dropped.
    """

    def __init__(
        self,
        *,
        chain: bool = False,
        share_outputs: bool = False,
        corpora: Sequence[Corpus] = (),
        static_table: StaticTable | None = None,
        weights: VoteWeights | None = None,
        look_up: bool = True,
        store_tokens: int = 1 << 20,
        max_tokens: int = 1 << 20,
    ) -> None:
        if max_tokens < 64 or store_tokens < 128:
            raise ConfigurationError(
                f"max_tokens is {max_tokens} and store_tokens is {store_tokens};"
                " they must be at least 64 and 128"
            )
        self.chain = chain
        self.corpora = tuple(corpora)
        self.store = OutputStore(store_tokens) if share_outputs else None
        self.max_tokens = max_tokens
        self._weights = (weights or VoteWeights()).arrays
        self.static_table = static_table or StaticTable(0)
        self._looks_up = look_up
        self._recycled = RecycledStore(shared=share_outputs)
        self._requests: dict[str, _SuffixState] = {}
        self._lock = Lock()
        self._tail = np.empty(MAX_MATCH, dtype=np.int32)
        max_matches = NUM_FREQUENT + 3 * MAX_MATCHES + MAX_CORPUS_MATCHES * len(self.corpora)
        self._work = Workspace(max(256, max_matches))
        self._matches = np.empty((max_matches, CONTINUATION + MAX_DEPTH), dtype=np.int32)

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One tree per view, its nodes in order of estimated survival."""
        with self._lock:
            return [
                self._draft(view, budget) if budget > 0 else self._append_only(view)
                for view, budget in zip(views, budgets, strict=True)
            ]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Keep the new tokens for the store, in case `propose` is not called again."""
        with self._lock:
            request = self._requests.get(id)
            if request is not None and self.store is not None:
                request.pending += verdict.tokens(draft)

    def learn_logits(self, id: str, top_tokens: TopTokens) -> None:  # noqa: A002
        """Keep the likeliest next tokens of verified rows."""
        with self._lock:
            request = self._requests.get(id)
            if request is not None:
                request.recycled.add(top_tokens)

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop a request; with `share_outputs` its output is stored for later requests with the same salt."""
        with self._lock:
            request = self._requests.pop(id, None)
            if request is not None and self.store is not None:
                self.store.add(request.salt, request.output())

    def _request_of(self, view: RequestView) -> _SuffixState:
        """State of a view's request; a new state if the view shows that the id was reused."""
        request = self._requests.get(view.id)
        if request is None or request.salt != view.salt or request.known > len(view.tokens):
            recycled = self._recycled.of(view.salt)
            request = self._requests[view.id] = _SuffixState(view, self.max_tokens, recycled)
        return request

    def _append_only(self, view: RequestView) -> Draft:
        """Draft nothing, but index new tokens if the output will be stored."""
        if self.store is not None:
            request = self._request_of(view)
            request.index.extend(request.unread(view))
            request.known = len(view.tokens)
        return _EMPTY_DRAFT

    def _draft(self, view: RequestView, budget: int) -> Draft:
        """Draft tree of one request."""
        if budget > self._work.width:
            self._work = Workspace(budget)
        request = self._request_of(view)
        num = self._look_up(request, view, min(budget, MAX_DEPTH))
        nodes = np.empty((2, budget), dtype=np.int64)
        survival = np.empty(budget, dtype=np.float32)
        work = self._work
        table = self.static_table
        sources = (request.recycled.arrays, table.successors, table.codes, *self._weights)
        matches = self._matches[:num]
        num = grow_tree(matches, self._tail, sources, self.chain, nodes, survival, work.ints, work.floats)
        if num < budget:
            nodes, survival = nodes[:, :num], survival[:num]
        sampled, source = _chosen_nodes(num)
        return Draft(nodes[TOKENS], nodes[PARENTS], sampled, source=source, survival=survival)

    def _look_up(self, request: _SuffixState, view: RequestView, depth: int) -> int:
        """Index new tokens, collect matches from every source, and return their number."""
        new, own, tail, matches = request.unread(view), request.index, self._tail, self._matches
        num = append_and_look_up(
            own.token_table, own.hash_table, own.counters, new, tail, matches, depth, MAX_MATCHES
        )
        if num < 0:
            own.extend(new)
            num = look_up_own(own.token_table, own.counters, tail, matches, depth, MAX_MATCHES)
        request.known += len(new)
        if not self._looks_up:
            return 0
        if self.store is not None:
            for index in self.store.indexes(request.salt):
                free_rows = matches[num : num + MAX_MATCHES]
                num_found = look_up(
                    index.token_table, index.hash_table, index.counters, tail, free_rows, depth
                )
                free_rows[:num_found, SOURCE] = SHARED
                num += num_found
        for corpus in self.corpora:
            num += corpus.look_up(tail, matches[num : num + MAX_CORPUS_MATCHES], depth)
        return num


@cache
def _chosen_nodes(num: int) -> tuple[BoolArray, tuple[str, ...]]:
    """Fields shared by all drafts of `num` nodes: not sampled, and from this drafter."""
    sampled = np.zeros(num, dtype=np.bool_)
    sampled.setflags(write=False)
    return sampled, (NAME,) * num


class _SuffixState:
    """State of a request: its indexed text, and the tokens that are not indexed yet."""

    __slots__ = ("index", "known", "num_prompt", "pending", "recycled", "salt")

    def __init__(self, view: RequestView, max_tokens: int, recycled: RecycledLogits) -> None:
        self.salt = view.salt
        self.num_prompt = view.num_prompt
        self.known = 0
        self.pending: list[int] = []
        self.recycled = recycled
        self.index = ContextIndex(capacity=len(view.tokens) * 5 // 4 + 256, max_tokens=max_tokens)

    def unread(self, view: RequestView) -> Ints:
        """Tokens since the last call, copied: compiled functions accept only one array type."""
        self.pending = []
        return np.array(view.tokens[self.known :], dtype=np.int32)

    def output(self) -> Ints:
        """Output of the request as far as known; empty if the length of the prompt is unknown."""
        if self.num_prompt is None:
            return np.empty(0, dtype=np.int32)
        num = min(self.known - self.num_prompt, len(self.index))
        output = self.index.text[len(self.index) - num :]
        return np.concatenate([output, np.asarray(self.pending, dtype=np.int32)])
