"""The types every room shares. Frozen; they own no behaviour beyond reading themselves.

A chain is a tree with one branch, so nothing here has two versions. This module knows neither models nor
engines, and it does not import torch: a distribution is any one-dimensional array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from forerun.errors import InvalidDraft, InvalidSampling

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float64]

Distribution: TypeAlias = Any
"""A one-dimensional array over the vocabulary: a torch tensor, or Fractions in a NumPy object array."""

ROOT = -1
"""The parent of a guess that directly follows the last committed token."""

_NOTHING: Mapping[int, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request wants its tokens drawn, with the meaning vLLM's sampler gives each setting.

    What vLLM's front end rounds or clamps before its sampler sees it is for the engine to repeat.
    temperature 0 is greedy. top_k 0 and top_p 1 and min_p 0 are off. `bad_words` are token sequences: the
    last token of each is forbidden where the output ends with the others. With a `seed`, speculation says
    the very tokens that plain decoding says.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NOTHING)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, math.inf)
        _within("top_k", self.top_k, 0, math.inf)
        _within("top_p", self.top_p, 0.0, 1.0, open_below=True)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_below=True)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidSampling(
                "allowed_token_ids is empty, so nothing can be said: pass None to allow all"
            )
        if not all(math.isfinite(bias) for bias in self.logit_bias.values()):
            raise InvalidSampling(
                "logit_bias has an infinite or NaN entry: use allowed_token_ids or bad_words"
            )
        if not all(self.bad_words):
            raise InvalidSampling("a bad word has no token: leave it out")

    @property
    def greedy(self) -> bool:
        """Whether the target takes its most likely token; vLLM draws the line at the same place."""
        return self.temperature < 1e-5

    @property
    def looks_back(self) -> bool:
        """Whether the distribution depends on which tokens came before, beyond what the model sees."""
        penalised = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (
            1.0,
            0.0,
            0.0,
        )
        return penalised or bool(self.bad_words)


def _within(name: str, value: float, low: float, high: float, *, open_below: bool = False) -> None:
    """Raise unless the value lies between its bounds; infinities and NaN never do."""
    if math.isfinite(value) and low <= value <= high and not (open_below and value == low):
        return
    below = f"more than {low:g}" if open_below else f"at least {low:g}"
    above = "" if high == math.inf else f" and at most {high:g}"
    raise InvalidSampling(f"{name} is {value}; it must be finite, {below}{above}")


_PLAINLY = SamplingParams()


class Tokens(Protocol):
    """A sequence of token ids that can be sliced without knowing what holds it: a list, an array, a view."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> Sequence[int] | npt.NDArray[np.integer[Any]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class RequestView:
    """What a drafter may see of a request.

    `tokens` is the whole sequence so far, prompt and output, not a copy: it grows between two calls, and a
    drafter catches up from where it left off. The first `num_prompt` of them are the prompt, where that is
    known. Text may pass from one request to another only where their `salt` is the same.
    """

    id: str
    tokens: Tokens
    num_prompt: int | None = None
    salt: str | None = None
    sampling: SamplingParams = _PLAINLY


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The distribution q that the sampled children of one node were drawn from, and how."""

    probs: Distribution
    replacement: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """One request's guess: a token tree in topological order.

    `parents[i]` is a node before i, or `ROOT`. `sampled[i]` says whether node i was drawn from a q or
    chosen (a point mass, as n-gram and suffix guesses are). `q[j]` is what the sampled children of node j
    were drawn from. `source[i]` names the drafter; `evidence[i]` is a row of numbers its survival can be
    learnt from, opaque to core.

    Sampled siblings keep the order in which they were drawn, and equal tokens drawn twice stay two nodes:
    merging or sorting them biases the result. A chosen node may depend on the values of sampled siblings
    before it, never on later ones.
    """

    tokens: IntArray
    parents: IntArray
    sampled: BoolArray
    q: Mapping[int, Proposal] = field(default_factory=lambda: _NOTHING)
    source: tuple[str, ...] = ()
    evidence: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int] | IntArray,
        *,
        q: Sequence[Proposal] = (),
        source: str = "",
        evidence: npt.NDArray[np.float32] | None = None,
    ) -> Draft:
        """A tree with one branch: drawn where `q` is given, one per token, else chosen."""
        num = len(tokens)
        if q and len(q) != num:
            raise InvalidDraft(
                f"a sampled chain of {num} tokens came with {len(q)} distributions; each needs one"
            )
        return cls(
            tokens=np.asarray(tokens, dtype=np.int64),
            parents=np.arange(-1, num - 1, dtype=np.int64),
            sampled=np.full(num, bool(q)),
            q={node - 1: proposal for node, proposal in enumerate(q)},
            source=(source,) * num,
            evidence=evidence,
        )

    @property
    def is_chain(self) -> bool:
        """Whether every node follows the one before it."""
        parents: list[int] = self.parents.tolist()
        return parents == [*range(-1, len(self) - 1)]  # quicker than arrays for so few

    @property
    def depth(self) -> int:
        """How far ahead the draft reaches."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return max(depths, default=0)

    def truncate(self, num: int) -> Draft:
        """The draft of the first so many nodes, which is one since parents come first.

        Raises for nodes that were drawn: to drop one of them after the draw, for whatever it is, changes what
        is said. How many to draw is decided before.
        """
        if num >= len(self):
            return self
        self._demand_kept(self.sampled[num:])
        if not num:
            return _NO_DRAFT
        return Draft(
            tokens=self.tokens[:num],
            parents=self.parents[:num],
            sampled=self.sampled[:num],
            q=self.q,
            source=self.source[:num],
            evidence=None if self.evidence is None else self.evidence[:num],
        )

    def select(self, kept: BoolArray) -> Draft:
        """The draft of the nodes that are kept, which all they follow must be. Raises as `first` does."""
        num = int(np.count_nonzero(kept))
        if kept[:num].all():
            return self.truncate(num)
        self._demand_kept(self.sampled[~kept])
        places = np.cumsum(kept) - 1
        parents = self.parents[kept]
        if not kept[parents[parents != ROOT]].all():
            raise InvalidDraft("a guess cannot be kept without the one it follows")
        return Draft(
            tokens=self.tokens[kept],
            parents=np.where(parents == ROOT, ROOT, places[parents]),
            sampled=self.sampled[kept],
            q={
                ROOT if parent == ROOT else int(places[parent]): q
                for parent, q in self.q.items()
                if parent == ROOT or kept[parent]
            },
            source=tuple(compress(self.source, kept)),
            evidence=None if self.evidence is None else self.evidence[kept],
        )

    def _demand_kept(self, dropped: BoolArray) -> None:
        """Raise if any node that is dropped was drawn."""
        if np.count_nonzero(dropped):
            raise InvalidDraft("a guess that was drawn cannot be dropped: draw fewer instead")

    def path(self, node: int) -> list[int]:
        """The nodes from the root to this one, itself included."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def check(self, vocab_size: int | None = None) -> None:
        """Raise `InvalidDraft` where the contract is broken; `core` checks whole batches the same way."""
        num = len(self.tokens)
        if not len(self.parents) == len(self.sampled) == num:
            raise InvalidDraft(
                f"{num} tokens came with {len(self.parents)} parents and {len(self.sampled)} entries of"
                " `sampled`; each node needs one of each"
            )
        tokens, parents = self.tokens.tolist(), self.parents.tolist()  # quicker than arrays for so few
        for node, parent in enumerate(parents if parents != [*range(-1, num - 1)] else ()):
            if not ROOT <= parent < node:
                raise InvalidDraft(f"node {node} has parent {parent}; a parent comes first, or is {ROOT}")
        if self.tokens.dtype.kind not in "iu":
            raise InvalidDraft(f"tokens came as {self.tokens.dtype}; they are whole numbers")
        top = math.inf if vocab_size is None else vocab_size
        if num and not (min(tokens) >= 0 and max(tokens) < top):
            raise InvalidDraft(f"tokens run from {min(tokens)} to {max(tokens)}; the vocabulary has {top}")
        drawn = self.sampled.tolist()
        if True in drawn and (missing := set(compress(parents, drawn)) - self.q.keys()):
            raise InvalidDraft(
                f"sampled children of node {min(missing)} came without the q they were drawn from"
            )


_NO_DRAFT = Draft.chain([])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands: the nodes kept, in order, and the one token the target adds (correction or bonus).

    A round therefore commits 1 to depth + 1 tokens.
    """

    accepted: tuple[int, ...]
    next_token: int

    def tokens(self, draft: Draft) -> list[int]:
        """The tokens this verdict commits."""
        return [*(int(draft.tokens[node]) for node in self.accepted), self.next_token]


@runtime_checkable
class Drafter(Protocol):
    """Who guesses, for one thread at a time.

    Errors raised here never reach a request: the engine counts them and decodes plainly.
    """

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per view, of at most its budget's nodes; fewer, or none, is fine.

        For guesses sampled from a q the budget is the number to draw: it was fixed before the draw, and no
        drawn token may be dropped for its value.
        """

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Hear what became of a draft. The request's tokens come with the next `propose`."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop everything known of a request that is over."""
