"""Shared types. Frozen dataclasses that describe a request, its draft and the outcome of verification.

A chain is a tree with one branch, so there is one draft type. This module depends neither on models nor on
engines and does not import torch: a distribution is any one-dimensional array.
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
"""The parent of a draft token that directly follows the last committed token."""

_EMPTY_MAPPING: Mapping[int, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of a request, with the semantics of vLLM's sampler.

    With a `seed`, speculative decoding emits exactly the tokens of non-speculative decoding with that seed in
    float32; in lower precision up to near-ties, which change with the number of rows in a forward pass.
    Values that vLLM's front end rounds or clamps before sampling are taken as given here; engines apply that
    step themselves.

    Attributes:
        temperature: 0 (below 1e-5) is greedy decoding.
        top_k: Keep the k most likely tokens; 0 disables it.
        top_p: Keep the smallest set of most likely tokens with this much probability; 1 disables it.
        min_p: Drop tokens less likely than `min_p` times the most likely token; 0 disables it.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or output.
        presence_penalty: Subtracted from the logits of tokens in the output.
        frequency_penalty: Subtracted from the logits of tokens in the output, once per occurrence.
        logit_bias: Added to the logits of these token ids.
        allowed_token_ids: If set, no other token can be emitted.
        bad_words: Token sequences. The last token of each is forbidden where the output ends with the others.
        seed: Makes sampling reproducible.

    Raises:
        InvalidSampling: A setting is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _EMPTY_MAPPING)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, math.inf)
        _check_range("top_k", self.top_k, 0, math.inf)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_below=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_below=True)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidSampling(
                "allowed_token_ids is empty, so no token can be emitted: pass None to allow all"
            )
        if not all(math.isfinite(bias) for bias in self.logit_bias.values()):
            raise InvalidSampling(
                "logit_bias has an infinite or NaN entry: use allowed_token_ids or bad_words to forbid tokens"
            )
        if not all(self.bad_words):
            raise InvalidSampling("bad_words contains an empty sequence: remove it")

    @property
    def greedy(self) -> bool:
        """Whether decoding is greedy: temperature below 1e-5, the same threshold as in vLLM."""
        return self.temperature < 1e-5

    @property
    def looks_back(self) -> bool:
        """Whether logits processors depend on earlier tokens: penalties or bad words are set."""
        penalised = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (
            1.0,
            0.0,
            0.0,
        )
        return penalised or bool(self.bad_words)


def _check_range(name: str, value: float, low: float, high: float, *, open_below: bool = False) -> None:
    """Raise unless the value is finite and within its bounds."""
    if math.isfinite(value) and low <= value <= high and not (open_below and value == low):
        return
    below = f"above {low:g}" if open_below else f"at least {low:g}"
    above = "" if high == math.inf else f" and at most {high:g}"
    raise InvalidSampling(f"{name} is {value}; it must be finite, {below}{above}")


_DEFAULT_SAMPLING = SamplingParams()


class Tokens(Protocol):
    """A sliceable sequence of token ids: a list, an array, or a view of either."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> Sequence[int] | npt.NDArray[np.integer[Any]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class RequestView:
    """Read-only view of a request, as a drafter sees it.

    Attributes:
        id: Identifies the request until `Drafter.forget`.
        tokens: All tokens so far, prompt and output. Not a copy: it grows between two calls of
            `Drafter.propose`, and a drafter continues from the length it saw last.
        num_prompt: Number of prompt tokens at the start of `tokens`; None if unknown.
        salt: The request's `cache_salt`. A drafter may share text only between requests with the same salt.
        sampling: The request's sampling settings.
    """

    id: str
    tokens: Tokens
    num_prompt: int | None = None
    salt: str | None = None
    sampling: SamplingParams = _DEFAULT_SAMPLING


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The distribution q that the sampled children of one node were sampled from.

    Verification compares p with this q, so it must be the exact distribution the tokens were sampled from:
    after temperature and truncation, in float32, over the target's vocabulary. Another q (rounded, or before
    truncation) changes the output distribution.

    Attributes:
        probs: q, one-dimensional and normalised: a float32 torch tensor, or an array of Fractions.
        replacement: Whether siblings were sampled with replacement. If False, each sibling was sampled from q
            without the tokens of the siblings before it, renormalised.
    """

    probs: Distribution
    replacement: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """One request's draft: a tree of draft tokens in topological order.

    Node i proposes `tokens[i]` as the token after node `parents[i]`, or after the last committed token if the
    parent is `ROOT` (-1). Parents precede their children. A chain is a tree with one branch; `Draft.chain`
    builds one. An empty draft is valid: the request then decodes one token without speculation.

    A node is either *sampled* from a distribution q (draft models) or *chosen* deterministically (n-gram and
    suffix lookups). The output stays lossless only under these conditions:

    - The number of sampled nodes is fixed before sampling. A sampled node is never dropped because of its
      value; `truncate` and `select` raise `InvalidDraft` if they would.
    - Sampled siblings keep the order in which they were sampled, and a token sampled twice stays two nodes.
      Merging or sorting siblings biases the output.
    - A chosen node may depend on the values of sampled siblings before it, never on later ones.

    Attributes:
        tokens: Token id of each node, int64.
        parents: Index of each node's parent, or -1.
        sampled: Whether each node was sampled from a q (True) or chosen (False).
        q: For each parent with sampled children, the `Proposal` they were sampled from; key -1 is the root.
        source: Name of the drafter of each node, for statistics.
        evidence: One row of features per node, from which the controller estimates acceptance. Verification
            ignores it.

    Examples:
        >>> chain = Draft.chain([5, 6, 7])
        >>> chain.parents.tolist()
        [-1, 0, 1]
        >>> tree = Draft(np.array([5, 6, 8]), np.array([-1, 0, -1]), np.zeros(3, dtype=bool))
        >>> tree.path(1), tree.depth
        ([0, 1], 2)
    """

    tokens: IntArray
    parents: IntArray
    sampled: BoolArray
    q: Mapping[int, Proposal] = field(default_factory=lambda: _EMPTY_MAPPING)
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
        """A chain of these tokens: sampled if `q` has one proposal per token, otherwise chosen."""
        num = len(tokens)
        if q and len(q) != num:
            raise InvalidDraft(
                f"got {num} sampled tokens and {len(q)} distributions; pass one distribution per token"
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
        """Whether every node is the child of the node before it."""
        parents: list[int] = self.parents.tolist()
        return parents == [*range(-1, len(self) - 1)]  # faster than arrays at this size

    @property
    def depth(self) -> int:
        """Length of the longest path, in draft tokens."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return max(depths, default=0)

    def truncate(self, num_nodes: int) -> Draft:
        """The draft of the first `num_nodes` nodes.

        Raises `InvalidDraft` if a sampled node would be dropped: dropping a node after it was sampled changes
        the output distribution. Choose the number of nodes before sampling.
        """
        if num_nodes >= len(self):
            return self
        self._check_none_sampled(self.sampled[num_nodes:])
        if not num_nodes:
            return _EMPTY_DRAFT
        return Draft(
            tokens=self.tokens[:num_nodes],
            parents=self.parents[:num_nodes],
            sampled=self.sampled[:num_nodes],
            q=self.q,
            source=self.source[:num_nodes],
            evidence=None if self.evidence is None else self.evidence[:num_nodes],
        )

    def select(self, kept: BoolArray) -> Draft:
        """The draft of the nodes where `kept` is true; the parent of a kept node must be kept.

        Raises `InvalidDraft` if a sampled node would be dropped, like `truncate`.
        """
        num = int(np.count_nonzero(kept))
        if kept[:num].all():
            return self.truncate(num)
        self._check_none_sampled(self.sampled[~kept])
        new_index = np.cumsum(kept) - 1
        parents = self.parents[kept]
        if not kept[parents[parents != ROOT]].all():
            raise InvalidDraft("a kept node has a dropped parent: keep the parent of every kept node")
        return Draft(
            tokens=self.tokens[kept],
            parents=np.where(parents == ROOT, ROOT, new_index[parents]),
            sampled=self.sampled[kept],
            q={
                ROOT if parent == ROOT else int(new_index[parent]): q
                for parent, q in self.q.items()
                if parent == ROOT or kept[parent]
            },
            source=tuple(compress(self.source, kept)),
            evidence=None if self.evidence is None else self.evidence[kept],
        )

    def _check_none_sampled(self, dropped: BoolArray) -> None:
        """Raise if any dropped node was sampled."""
        if np.count_nonzero(dropped):
            raise InvalidDraft("cannot drop a sampled draft token: sample fewer tokens instead")

    def path(self, node: int) -> list[int]:
        """The nodes from the root to this node, inclusive."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def check(self, vocab_size: int | None = None) -> None:
        """Raise `InvalidDraft` if the contract is broken; `core` checks whole batches the same way."""
        num = len(self.tokens)
        if not len(self.parents) == len(self.sampled) == num:
            raise InvalidDraft(
                f"got {num} tokens, {len(self.parents)} parents and {len(self.sampled)} entries of `sampled`;"
                " each node needs one of each"
            )
        tokens, parents = self.tokens.tolist(), self.parents.tolist()  # faster than arrays at this size
        for node, parent in enumerate(parents if parents != [*range(-1, num - 1)] else ()):
            if not ROOT <= parent < node:
                raise InvalidDraft(
                    f"node {node} has parent {parent}; a parent precedes its children or is {ROOT}"
                )
        if self.tokens.dtype.kind not in "iu":
            raise InvalidDraft(f"tokens have dtype {self.tokens.dtype}; expected an integer dtype")
        top = math.inf if vocab_size is None else vocab_size
        if num and not (min(tokens) >= 0 and max(tokens) < top):
            raise InvalidDraft(
                f"tokens range from {min(tokens)} to {max(tokens)}; the vocabulary has {top} tokens"
            )
        sampled = self.sampled.tolist()
        if True in sampled and (missing := set(compress(parents, sampled)) - self.q.keys()):
            raise InvalidDraft(
                f"sampled children of node {min(missing)} have no q; pass the q they were sampled from"
            )


_EMPTY_DRAFT = Draft.chain([])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of verifying one draft.

    A step commits the accepted draft tokens and one more token: between 1 and depth + 1 tokens.

    Attributes:
        accepted: The accepted nodes, a path from the root in order.
        next_token: The token after them: the bonus token if the path ends at a leaf, otherwise the recovered
            token, which replaces the rejected draft tokens.

    Examples:
        >>> Verdict((0, 1), 9).tokens(Draft.chain([5, 6, 7]))
        [5, 6, 9]
    """

    accepted: tuple[int, ...]
    next_token: int

    def tokens(self, draft: Draft) -> list[int]:
        """The tokens that the step commits: the accepted draft tokens, then `next_token`."""
        return [*(int(draft.tokens[node]) for node in self.accepted), self.next_token]


@runtime_checkable
class Drafter(Protocol):
    """Proposes drafts; called from one thread at a time.

    Any object with these three methods is a drafter. Exceptions raised here never reach a request: the engine
    counts and logs them, and the request decodes without speculation.
    """

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per view, with at most as many nodes as its budget; a shorter or empty draft is valid.

        For draft tokens sampled from a q, the budget is the number to sample: it was fixed before sampling,
        and no sampled token may be dropped because of its value.
        """

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Observe the outcome of a draft. The request's new tokens come with the next `propose`."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop all state of a finished request."""
