"""The suffix drafter: what followed the last time the text read like this?

Looks the end of a request's text up in the text itself, in the outputs of earlier requests of the same salt
(off unless turned on), and in corpora, and grows one tree from everything it finds. It needs no model and
knows none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from forerun.core.compiled import compiled
from forerun.drafters.corpus import Corpus
from forerun.drafters.index import NUM_FREQUENT, Index, recall, recall_own
from forerun.drafters.sightings import AHEAD, LONGEST, NUM_SOURCES, SHARED, SOURCE, Ints
from forerun.drafters.store import Store
from forerun.drafters.tree import EVIDENCE, FROM, Evidence, Workspace, grow, write
from forerun.types import ROOT, Draft, IntArray, RequestView, Verdict

NAME: Final = "suffix"
DEEPEST: Final = 64
"""No guess reaches further ahead than this."""

MOST_SEEN: Final = 16
"""Sightings of the current context that each source may give."""

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
        self.chain = chain
        self.corpora = tuple(corpora)
        self.store = Store(store_tokens) if share_outputs else None
        self.most_tokens = most_tokens
        self._requests: dict[str, _Request] = {}
        self._tail = np.empty(LONGEST, dtype=np.int32)
        most_seen = NUM_FREQUENT + MOST_SEEN * (3 + len(self.corpora))
        self._work = Workspace(max(256, most_seen))
        self._sightings = np.empty((most_seen, AHEAD + DEEPEST), dtype=np.int32)

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One tree per view; its nodes come in the order of their estimated survival."""
        most = max(0, max(budgets, default=0))
        tokens = np.empty((len(views), most), dtype=np.int64)
        parents = np.empty((len(views), most), dtype=np.int64)
        evidence = np.empty((len(views), most, len(EVIDENCE)), dtype=np.float32)
        chosen = np.zeros(most, dtype=np.bool_)
        work = self._workspace(most)
        drafts = []
        for row, (view, budget) in enumerate(zip(views, budgets, strict=True)):
            if budget <= 0:
                drafts.append(_NOTHING)
                continue
            request = self._catch_up(view)
            depth = min(budget, DEEPEST)
            num = self._look_up(request, depth)
            num = grow(self._sightings, num, depth, budget, self.chain, work.ints, work.floats)
            seen = evidence[row, :num]
            draft = Draft(
                tokens[row, :num], parents[row, :num], chosen[:num], source=(NAME,) * num, evidence=seen
            )
            write(num, work.ints, work.floats, request.record, draft.tokens, draft.parents, seen)
            drafts.append(draft)
        return drafts

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Hear which sources were right, and what the request says next in case it is the last one hears."""
        request = self._requests.get(id)
        if request is None:
            return
        if self.store is not None:
            request.rest = verdict.tokens(draft)
        if draft.evidence is not None and len(draft):
            kept = verdict.accepted[0] if verdict.accepted else ROOT
            hear(draft.parents, draft.evidence, kept, request.record, request.tries)

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop a request; its output is kept for others of its salt where that is turned on."""
        request = self._requests.pop(id, None)
        if request is not None and self.store is not None:
            self.store.add(request.salt, request.output())

    def _catch_up(self, view: RequestView) -> _Request:
        """The request of a view, with all its tokens indexed."""
        request = self._requests.get(view.id)
        if request is None:
            request = self._requests[view.id] = _Request(view, self.most_tokens)
        request.read(view)
        return request

    def _workspace(self, budget: int) -> Workspace:
        """The workspace, larger than before if this budget asks for it."""
        if budget > self._work.width:
            self._work = Workspace(budget)
        return self._work

    def _look_up(self, request: _Request, depth: int) -> int:
        """Gather sightings from every source and return their number."""
        own = request.index
        num = recall_own(own.book, own.meta, self._tail, self._sightings, depth, MOST_SEEN)
        if self.store is not None:
            for index in self.store.indexes(request.salt):
                room = self._sightings[num : num + MOST_SEEN]
                more = recall(index.book, index.heads, index.meta, self._tail, room, depth)
                room[:more, SOURCE] = SHARED
                num += more
        for corpus in self.corpora:
            room = self._sightings[num : num + MOST_SEEN]
            num += corpus.look_up(self._tail, room, depth)
        return num


class _Request:
    """What is kept of one request: its text, indexed, and how well each source did."""

    __slots__ = ("index", "known", "num_prompt", "record", "rest", "salt", "tries")

    def __init__(self, view: RequestView, most_tokens: int) -> None:
        self.salt = view.salt
        self.num_prompt = view.num_prompt
        self.known = 0
        self.rest: list[int] = []
        self.index = Index(room=len(view.tokens) * 5 // 4 + 256, most=most_tokens)
        self.record = np.full(NUM_SOURCES, 0.5, dtype=np.float32)
        self.tries = np.full(NUM_SOURCES, 2.0, dtype=np.float32)

    def read(self, view: RequestView) -> None:
        """Index the tokens that came since the last time."""
        new = np.asarray(view.tokens[self.known :], dtype=np.int32)
        self.known += len(new)
        self.index.extend(new)
        self.rest = []

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
    asked = 0
    for node in range(parents.size):
        if parents[node] == ROOT:
            asked |= int(evidence[node, FROM])
    right = int(evidence[kept, FROM]) if kept != ROOT else 0
    for source in range(record.size):
        if asked >> source & 1:
            tries[source] = min(tries[source] + 1.0, 20.0)
            record[source] += ((right >> source & 1) - record[source]) / tries[source]
