"""The suffix drafter: what followed the last time the text read like this?

Looks the end of a request's text up in the text itself, in the outputs of earlier requests of the same salt
(off unless turned on), and in corpora, and grows one tree from everything it finds. It needs no model and
knows none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Final

import numpy as np

from forerun.core.jit import compiled
from forerun.drafters.context_index import NUM_FREQUENT, ContextIndex, read_on, recall, recall_own
from forerun.drafters.corpus import Corpus
from forerun.drafters.match_tree import EVIDENCE, FROM, PARENTS, TOKENS, Evidence, Workspace, grow
from forerun.drafters.matches import AHEAD, LONGEST, NUM_SOURCES, SHARED, SOURCE, Ints
from forerun.drafters.output_store import OutputStore
from forerun.errors import ConfigurationError
from forerun.types import ROOT, BoolArray, Draft, IntArray, RequestView, Verdict

NAME: Final = "suffix"
DEEPEST: Final = 64
"""No guess reaches further ahead than this."""

MOST_SEEN: Final = 16
"""Sightings of the current context that the request's own text, and each half of the store, may give."""

MOST_FROM_CORPUS: Final = 8
"""The same of each corpus. Every one of them waits for memory, and eight guess as well as sixteen."""

_NOTHING: Final = Draft.chain([])


class SuffixDrafter:
    """Guesses what followed earlier sightings of the current context: a tree, or with `chain` one branch.

    `share_outputs` keeps what requests were answered, at most `store_tokens` tokens, and guesses it to later
    requests of the same salt; `corpora` are guessed from by all. A request's own text is indexed up to
    `most_tokens`; beyond that its older half is forgotten.
    """

    def __init__(
        self,
        *,
        chain: bool = False,
        share_outputs: bool = False,
        corpora: Sequence[Corpus] = (),
        store_tokens: int = 1 << 20,
        most_tokens: int = 1 << 20,
    ) -> None:
        if most_tokens < 64 or store_tokens < 128:
            raise ConfigurationError(
                f"most_tokens is {most_tokens} and store_tokens is {store_tokens};"
                " they must be at least 64 and 128"
            )
        self.chain = chain
        self.corpora = tuple(corpora)
        self.store = OutputStore(store_tokens) if share_outputs else None
        self.most_tokens = most_tokens
        self._requests: dict[str, _Request] = {}
        self._lock = Lock()
        self._tail = np.empty(LONGEST, dtype=np.int32)
        most_seen = NUM_FREQUENT + 3 * MOST_SEEN + MOST_FROM_CORPUS * len(self.corpora)
        self._work = Workspace(max(256, most_seen))
        self._sightings = np.empty((most_seen, AHEAD + DEEPEST), dtype=np.int32)

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One tree per view; its nodes come in the order of their estimated survival."""
        with self._lock:
            return [
                self._draft(view, budget) if budget > 0 else self._listen(view)
                for view, budget in zip(views, budgets, strict=True)
            ]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Hear which sources were right, and what the request says next in case it is the last one hears."""
        with self._lock:
            request = self._requests.get(id)
            if request is None:
                return
            if self.store is not None:
                request.rest += verdict.tokens(draft)
            if NAME in draft.source and draft.evidence is not None:
                kept = verdict.accepted[0] if verdict.accepted else ROOT
                hear(draft.parents, draft.evidence, kept, request.record, request.tries)

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop a request; its output is kept for others of its salt where that is turned on."""
        with self._lock:
            request = self._requests.pop(id, None)
            if request is not None and self.store is not None:
                self.store.add(request.salt, request.output())

    def _request_of(self, view: RequestView) -> _Request:
        """What is known of a request; nothing, if the view shows that it is another one with an old id."""
        request = self._requests.get(view.id)
        if request is None or request.salt != view.salt or request.known > len(view.tokens):
            request = self._requests[view.id] = _Request(view, self.most_tokens)
        return request

    def _listen(self, view: RequestView) -> Draft:
        """Guess nothing, but keep up where the output will be wanted."""
        if self.store is not None:
            request = self._request_of(view)
            request.index.extend(request.unread(view))
            request.known = len(view.tokens)
        return _NOTHING

    def _draft(self, view: RequestView, budget: int) -> Draft:
        """The tree of one request."""
        if budget > self._work.width:
            self._work = Workspace(budget)
        request = self._request_of(view)
        num = self._look_up(request, view, min(budget, DEEPEST))
        nodes = np.empty((2, budget), dtype=np.int64)
        evidence = np.empty((budget, len(EVIDENCE)), dtype=np.float32)
        work = self._work
        num = grow(self._sightings, num, self.chain, request.record, nodes, evidence, work.ints, work.floats)
        if num < budget:
            nodes, evidence = nodes[:, :num], evidence[:num]
        sampled, source = _plainly(num)
        return Draft(nodes[TOKENS], nodes[PARENTS], sampled, source=source, evidence=evidence)

    def _look_up(self, request: _Request, view: RequestView, depth: int) -> int:
        """Read what is new, gather sightings from every source and return their number."""
        new, own, tail, sightings = request.unread(view), request.index, self._tail, self._sightings
        num = read_on(own.book, own.heads, own.meta, new, tail, sightings, depth, MOST_SEEN)
        if num < 0:
            own.extend(new)
            num = recall_own(own.book, own.meta, tail, sightings, depth, MOST_SEEN)
        request.known += len(new)
        if self.store is not None:
            for index in self.store.indexes(request.salt):
                room = sightings[num : num + MOST_SEEN]
                more = recall(index.book, index.heads, index.meta, tail, room, depth)
                room[:more, SOURCE] = SHARED
                num += more
        for corpus in self.corpora:
            num += corpus.look_up(tail, sightings[num : num + MOST_FROM_CORPUS], depth)
        return num


@cache
def _plainly(num: int) -> tuple[BoolArray, tuple[str, ...]]:
    """What is the same for every draft of so many nodes: all are chosen, and chosen here."""
    sampled = np.zeros(num, dtype=np.bool_)
    sampled.setflags(write=False)
    return sampled, (NAME,) * num


class _Request:
    """What is kept of one request: its text, indexed, and how well each source did."""

    __slots__ = ("index", "known", "num_prompt", "record", "rest", "salt", "tries")

    def __init__(self, view: RequestView, most_tokens: int) -> None:
        self.salt = view.salt
        self.num_prompt = view.num_prompt
        self.known = 0
        self.rest: list[int] = []
        self.index = ContextIndex(room=len(view.tokens) * 5 // 4 + 256, most=most_tokens)
        self.record = np.full(NUM_SOURCES, 0.5, dtype=np.float32)
        self.tries = np.full(NUM_SOURCES, 2.0, dtype=np.float32)

    def unread(self, view: RequestView) -> Ints:
        """The tokens that came since the last time, copied: compiled loops know one kind of array."""
        self.rest = []
        return np.array(view.tokens[self.known :], dtype=np.int32)

    def output(self) -> Ints:
        """What the request was answered, as far as it is known; nothing if nobody said where it begins."""
        if self.num_prompt is None:
            return np.empty(0, dtype=np.int32)
        num = min(self.known - self.num_prompt, len(self.index))
        said = self.index.text[len(self.index) - num :]
        return np.concatenate([said, np.asarray(self.rest, dtype=np.int32)])


@compiled
def hear(parents: IntArray, evidence: Evidence, kept: int, record: Evidence, tries: Evidence) -> None:
    """Move the record of every source that guessed the next token towards whether it was right."""
    if evidence.shape[0] != parents.size or evidence.shape[1] <= FROM or kept >= parents.size:
        return
    asked = 0
    for node in range(parents.size):
        if parents[node] == ROOT:
            asked |= int(evidence[node, FROM])
    right = int(evidence[kept, FROM]) if kept != ROOT else 0
    for source in range(record.size):
        if asked >> source & 1:
            tries[source] = min(tries[source] + 1.0, 20.0)
            record[source] += ((right >> source & 1) - record[source]) / tries[source]
