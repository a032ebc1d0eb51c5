from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from forerun import Draft, Drafter, Proposal, RequestView, SamplingParams, Verdict
from forerun.errors import InvalidDraft, InvalidSampling


def test_a_chain_is_a_tree_with_one_branch() -> None:
    draft = Draft.chain([5, 6, 7], source="ngram")
    assert draft.parents.tolist() == [-1, 0, 1]
    assert draft.sampled.tolist() == [False] * 3
    assert draft.source == ("ngram",) * 3
    assert draft.path(2) == [0, 1, 2]
    draft.check(vocab_size=8)


def test_a_sampled_chain_keeps_the_q_of_every_token() -> None:
    q = [Proposal(np.array([0.5, 0.5])), Proposal(np.array([0.1, 0.9]))]
    draft = Draft.chain([0, 1], q=q)
    assert draft.sampled.all()
    assert draft.q[-1] is q[0]
    assert draft.q[0] is q[1]


def test_a_sampled_chain_with_too_few_q_raises() -> None:
    with pytest.raises(InvalidDraft, match="2 sampled tokens and 1 distributions"):
        Draft.chain([0, 1], q=[Proposal(np.array([1.0]))])


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft(np.array([1]), np.array([0]), np.array([False])), "node 0 has parent 0"),
        (Draft(np.array([1, 2]), np.array([-1]), np.array([False])), "2 tokens, 1 parents"),
        (Draft(np.array([1, 2]), np.array([-1, -2]), np.array([False] * 2)), "node 1 has parent -2"),
        (Draft(np.array([9]), np.array([-1]), np.array([False])), "vocabulary has 8"),
        (Draft(np.array([-1]), np.array([-1]), np.array([False])), "from -1"),
        (Draft(np.array([1]), np.array([-1]), np.array([True])), "node -1 have no q"),
    ],
)
def test_an_invalid_draft_raises_with_the_invalid_value(draft: Draft, message: str) -> None:
    with pytest.raises(InvalidDraft, match=message):
        draft.check(vocab_size=8)


def test_a_verdict_commits_one_token_more_than_it_accepts() -> None:
    draft = Draft(np.array([4, 5, 6]), np.array([-1, -1, 1]), np.zeros(3, dtype=bool))
    assert Verdict((1, 2), 7).tokens(draft) == [5, 6, 7]
    assert Verdict((), 7).tokens(draft) == [7]


def test_shared_types_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Verdict((), 1).next_token = 2  # type: ignore[misc]


def test_a_view_does_not_copy_the_tokens() -> None:
    tokens = [1, 2, 3]
    view = RequestView("r", tokens)
    tokens.append(4)
    assert len(view.tokens) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be finite, at least 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be finite, above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": 2.0}, "min_p is 2.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"presence_penalty": 3.0}, "presence_penalty is 3.0"),
        ({"frequency_penalty": -3.0}, "frequency_penalty is -3.0"),
        ({"logit_bias": {1: float("inf")}}, "infinite or NaN"),
        ({"allowed_token_ids": ()}, "allowed_token_ids is empty"),
        ({"bad_words": ((),)}, "bad_words contains an empty"),
    ],
)
def test_settings_out_of_range_raise(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSampling, match=message):
        SamplingParams(**settings)  # type: ignore[arg-type]


def test_the_greedy_threshold_is_that_of_vllm() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(temperature=0.9e-5).greedy
    assert not SamplingParams(temperature=1e-5).greedy


def test_any_class_with_the_three_methods_is_a_drafter() -> None:
    class EmptyDrafter:
        def propose(self, views: list[RequestView], budgets: list[int]) -> list[Draft]:
            return [Draft.chain([]) for _ in views]

        def learn(self, id: str, draft: Draft, verdict: Verdict) -> None: ...

        def forget(self, id: str) -> None: ...

    assert isinstance(EmptyDrafter(), Drafter)
    assert not isinstance(object(), Drafter)
