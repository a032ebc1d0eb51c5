from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters import ngram_counts as counts_module
from forerun.drafters.match_tree import UNSEEN_VOTES, UNSEEN_VOTES_PER_CANDIDATE, vote_weight
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.ngram_counts import NgramCounts
from forerun.errors import ConfigurationError
from forerun.types import Drafter, RequestView, SamplingParams
from unit.drafters import naive

texts = st.lists(st.integers(0, 3), min_size=1, max_size=120)


def followers(text: list[int], context: list[int], order: int) -> tuple[int, Counter[int], dict[int, int]]:
    """Longest known suffix of a context, the count of each token that followed it, and its last position."""
    for length in range(min(order - 1, len(context)), 0, -1):
        end = context[-length:]
        positions = [at for at in range(length, len(text)) if text[at - length : at] == end]
        if positions:
            return length, Counter(text[at] for at in positions), {text[at]: at for at in positions}
    return 0, Counter(), {}


def naive_chain(text: list[int], order: int, budget: int) -> list[tuple[int, float]]:
    """Token and survival of every draft token: the most frequent, the most recent of equals."""
    context, chain, survival = list(text), [], 1.0
    for _ in range(budget):
        length, counts, last = followers(text, context, order)
        if not length:
            break
        best = max(counts, key=lambda token: (counts[token], last[token]))
        weight = vote_weight(length, length, 1, 0, False)
        unseen_votes = UNSEEN_VOTES + UNSEEN_VOTES_PER_CANDIDATE
        survival *= weight * counts[best] / (unseen_votes + weight * counts.total())
        chain.append((best, survival))
        context.append(best)
    return chain


def draft_with_survival(text: list[int], order: int, budget: int) -> list[tuple[int, float]]:
    (draft,) = NgramDrafter(order=order).propose([RequestView("r", text)], [budget])
    assert draft.survival is not None
    return list(zip(draft.tokens.tolist(), draft.survival.tolist(), strict=True))


def agree(draft: list[tuple[int, float]], expected: list[tuple[int, float]]) -> bool:
    """Whether two chains have the same tokens and, up to float32 rounding, the same survival."""
    tokens, survivals = ([each[i] for each in draft] for i in (0, 1))
    return tokens == [token for token, _ in expected] and np.allclose(
        survivals, [survival for _, survival in expected], rtol=1e-5
    )


def test_it_is_a_drafter() -> None:
    assert isinstance(NgramDrafter(), Drafter)


@given(texts, st.integers(2, 6), st.integers(1, 12))
def test_it_proposes_the_most_frequent_continuation(text: list[int], order: int, budget: int) -> None:
    # Both searches prefer the token that followed the context most recently.
    assert agree(draft_with_survival(text, order, budget), naive_chain(text, order, budget))


def test_the_comparison_with_the_naive_tables_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 5, 1]
    for sabotage in (False, True):
        if sabotage:  # one hash for all contexts
            broken = naive.sabotaged(
                counts_module.append_tokens, extend_hash=lambda key, token: key * np.uint64(3)
            )
            monkeypatch.setattr(counts_module, "append_tokens", broken)
        assert agree(draft_with_survival(text, 3, 4), naive_chain(text, 3, 4)) != sabotage


def test_of_equally_frequent_continuations_the_most_recent_is_proposed() -> None:
    assert draft_with_survival([1, 2, 1, 3, 1], 2, 1)[0][0] == 3
    assert draft_with_survival([1, 3, 1, 2, 1], 2, 1)[0][0] == 2


@given(texts, st.lists(st.integers(1, 20), max_size=20))
def test_the_counts_do_not_depend_on_how_the_text_is_split(text: list[int], steps: list[int]) -> None:
    drafter = NgramDrafter()
    length = 1
    for step in steps:
        drafter.propose([RequestView("r", text[:length])], [1])
        length = min(length + step, len(text))
    (draft,) = drafter.propose([RequestView("r", text)], [8])
    assert draft.tokens.tolist() == [token for token, *_ in naive_chain(text, 5, 8)]


def test_memory_is_bounded_and_the_older_half_is_dropped() -> None:
    rng = np.random.default_rng(0)
    text = rng.integers(0, 1000, 20_000).astype(np.int32)
    counts = NgramCounts(order=4, capacity=10, max_tokens=512)
    max_bytes = 0
    for start in range(0, len(text), 100):
        counts.extend(text[start : start + 100])
        tables = (counts.tokens, counts.keys, counts.cells, counts.counters)
        max_bytes = max(max_bytes, sum(table.nbytes for table in tables))
    assert max_bytes < 150 * 1024
    assert 256 <= len(counts) <= 512
    recent = text[-len(counts) :].tolist()
    tokens, numbers = counts.continuations(naive.ints([recent[-100]]))
    _, expected, _ = followers(recent, [recent[-100]], 2)
    assert dict(zip(tokens.tolist(), numbers.tolist(), strict=True)) == expected


def test_of_a_prompt_beyond_the_bound_the_last_tokens_are_counted() -> None:
    text = list(range(5000))
    (draft,) = NgramDrafter(max_tokens=100).propose([RequestView("r", [*text, 4950])], [3])
    assert draft.tokens.tolist() == [4951, 4952, 4953]
    (draft,) = NgramDrafter(max_tokens=100).propose([RequestView("r", [*text, 10])], [3])
    assert len(draft) == 0


def test_sampled_draft_tokens_carry_the_q_they_were_sampled_from() -> None:
    text = [1, 2, 1, 2, 1, 3, 1]
    drafter = NgramDrafter(order=2, rng=np.random.default_rng(0), vocab_size=8)
    num_sampled: Counter[int] = Counter()
    for number in range(2000):
        (draft,) = drafter.propose([RequestView(str(number), text)], [1])
        draft.check(vocab_size=8)
        assert draft.sampled.all()
        assert draft.proposals_of_nodes()[0].probs.tolist() == pytest.approx([0, 0, 2 / 3, 1 / 3, 0, 0, 0, 0])
        num_sampled[int(draft.tokens[0])] += 1
    # Of 2,000 draws with probability 2/3, a share outside these bounds has a probability below 1e-6.
    assert 0.61 < num_sampled[2] / 2000 < 0.72


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SamplingParams(seed=5)])
def test_greedy_and_seeded_requests_get_the_most_frequent_continuation(sampling: SamplingParams) -> None:
    drafter = NgramDrafter(order=2, rng=np.random.default_rng(0), vocab_size=8)
    for number in range(50):
        view = RequestView(str(number), [1, 2, 1, 2, 1, 3, 1], sampling=sampling)
        (draft,) = drafter.propose([view], [1])
        assert draft.tokens.tolist() == [2]
        assert not draft.sampled.any()


@given(texts, st.integers(0, 2**32 - 1))
def test_q_equals_the_relative_counts(text: list[int], seed: int) -> None:
    drafter = NgramDrafter(order=4, rng=np.random.default_rng(seed), vocab_size=4)
    (draft,) = drafter.propose([RequestView("r", text)], [5])
    context = list(text)
    for node, token in enumerate(draft.tokens.tolist()):
        _, counts, _ = followers(text, context, 4)
        expected = [float(Fraction(counts[candidate], counts.total())) for candidate in range(4)]
        assert draft.proposals_of_nodes()[node].probs.tolist() == pytest.approx(expected)
        assert counts[token] > 0
        context.append(token)
    assert len(draft) == 5 or not followers(text, context, 4)[0], "only an unknown context ends a draft early"


def test_a_forgotten_request_leaves_no_state() -> None:
    drafter = NgramDrafter()
    drafter.propose([RequestView("r", [1, 2, 3])], [1])
    drafter.forget("r")
    drafter.forget("r")
    (draft,) = drafter.propose([RequestView("r", [4, 5, 6, 7, 1])], [1])
    assert len(draft) == 0


def test_a_shorter_text_under_the_same_id_is_another_request() -> None:
    drafter = NgramDrafter()
    drafter.propose([RequestView("r", [1, 2, 3, 4, 5, 1])], [1])
    (draft,) = drafter.propose([RequestView("r", [9, 1])], [1])
    assert len(draft) == 0


def test_tokens_outside_the_vocabulary_are_not_sampled() -> None:
    drafter = NgramDrafter(rng=np.random.default_rng(0), vocab_size=8)
    (draft,) = drafter.propose([RequestView("r", [1, 9, 1, -1, 1, 2, 1])], [1])
    assert draft.tokens.tolist() == [2]
    assert draft.proposals_of_nodes()[0].probs.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    (draft,) = drafter.propose([RequestView("s", [1, 9, 1, -1, 1])], [1])
    assert len(draft) == 0


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="order is 1"):
        NgramDrafter(order=1)
    with pytest.raises(ConfigurationError, match="max_tokens is 0"):
        NgramDrafter(max_tokens=0)
    for size in (None, 0):
        with pytest.raises(ConfigurationError, match="vocab_size"):
            NgramDrafter(rng=np.random.default_rng(0), vocab_size=size)
