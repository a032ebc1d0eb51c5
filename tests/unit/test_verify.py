from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from forerun.core.batch_sampling import BatchSampling
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.logits_processors import TokenHistory
from forerun.core.logits_warper import probabilities
from forerun.core.rejection_sampling import rejection_sample
from forerun.core.target_distribution import TargetDistribution
from forerun.core.verify import Method, VerifyRequest, method_for, verification_noise, verify
from forerun.errors import InvalidDistribution, InvalidDraft, InvalidSampling, VocabularyMismatch
from forerun.types import Draft, Proposal, SamplingParams, Verdict

Q = Proposal(torch.tensor([0.5, 0.5]))
CHAIN = Draft.chain([0, 1], q=[Q, Q])
TREE = Draft(np.array([0, 1]), np.array([-1, -1]), np.array([True, True]), {-1: Q})


@pytest.mark.parametrize(
    ("draft", "sampling", "lenience", "verifier", "method"),
    [
        (CHAIN, SamplingParams(temperature=0), 1.0, "auto", Method.FOLLOW),
        (CHAIN, SamplingParams(seed=1), 1.0, "auto", Method.FOLLOW),
        (Draft.chain([0, 1]), SamplingParams(), 1.0, "auto", Method.FOLLOW),
        (Draft.chain([]), SamplingParams(), 1.0, "auto", Method.FOLLOW),
        (CHAIN, SamplingParams(), 1.0, "auto", Method.BLOCK),
        (CHAIN, SamplingParams(), 1.0, "block", Method.BLOCK),
        (CHAIN, SamplingParams(), 1.0, "reject", Method.REJECT),
        (CHAIN, SamplingParams(), 1.0, "follow", Method.FOLLOW),
        (TREE, SamplingParams(), 1.0, "auto", Method.REJECT),
        (TREE, SamplingParams(), 1.0, "block", Method.REJECT),
        (CHAIN, SamplingParams(), 0.5, "auto", Method.LENIENT),
        (CHAIN, SamplingParams(temperature=0), 0.5, "auto", Method.LENIENT_GREEDY),
    ],
)
def test_each_request_gets_the_verifier_the_design_names(
    draft: Draft, sampling: SamplingParams, lenience: float, verifier: str, method: Method
) -> None:
    each = VerifyRequest(draft, sampling, key=0, length=0, lenience=lenience)
    assert method_for(each, verifier) is method  # type: ignore[arg-type]


def test_a_batch_of_all_kinds_is_judged_as_each_would_be_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    size, rounds = 50, []
    for i in range(40):
        qs = [Proposal(torch.softmax(torch.randn(size, generator=generator), dim=-1)) for _ in range(i % 12)]
        tokens = [int(torch.multinomial(q.probs, 1, generator=generator)) for q in qs]
        sampling = SamplingParams(
            temperature=(0.0, 1.0, 0.7)[i % 3],
            top_p=(1.0, 0.9)[i % 2],
            seed=(None, 5)[i // 2 % 2],
            repetition_penalty=(1.0, 1.3)[i // 3 % 2],
        )
        draft = Draft.chain(tokens, q=qs if i % 5 else [])
        rounds.append(
            VerifyRequest(
                draft,
                sampling,
                key=i,
                length=9,
                history=TokenHistory([1], [2, 3]),
                lenience=(1, 0.5)[i % 7 == 0],
            )
        )
    logits = torch.randn(sum(len(each.draft) + 1 for each in rounds), size, generator=generator) * 2
    together = verify(rounds, logits)
    row = 0
    for each, verdict in zip(rounds, together, strict=True):
        rows = logits[row : row + len(each.draft) + 1]
        assert verify([each], rows) == [verdict]
        row += len(each.draft) + 1


def test_bfloat16_logits_are_taken_as_they_are() -> None:
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    for sampling in (SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(seed=1, top_k=3)):
        each = VerifyRequest(Draft.chain([1, 2]), sampling, key=1, length=5)
        assert verify([each], logits) == verify([each], logits.float())


def test_rows_must_match_the_guesses() -> None:
    with pytest.raises(InvalidDistribution, match="2 rows of logits came for 3 rows"):
        verify([VerifyRequest(Draft.chain([1, 2]), SamplingParams(), key=0, length=0)], torch.zeros(2, 4))


@pytest.mark.parametrize("token", [-1, 4, 10**6])
def test_a_guess_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InvalidDraft, match="the vocabulary has 4"):
        verify([VerifyRequest(Draft.chain([token]), SamplingParams(), key=0, length=0)], torch.zeros(2, 4))


def test_a_q_of_another_vocabulary_is_refused() -> None:
    draft = Draft.chain([1], q=[Proposal(torch.full((3,), 1 / 3))])
    with pytest.raises(VocabularyMismatch, match="a q over 3 tokens came for a target of 4"):
        verify([VerifyRequest(draft, SamplingParams(), key=0, length=0)], torch.zeros(2, 4))


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(top_p=0.5, seed=1)]
)
def test_logits_that_are_not_numbers_are_an_error(sampling: SamplingParams) -> None:
    logits = torch.full((1, 8), float("nan"))
    with pytest.raises(InvalidDistribution):
        verify([VerifyRequest(Draft.chain([]), sampling, key=0, length=0)], logits)


def test_rows_behind_a_wrong_guess_do_not_matter() -> None:
    """What nobody reaches may be forbidden altogether, or not even a number."""
    sampling = SamplingParams(seed=1, allowed_token_ids=(1, 2), bad_words=((3, 1), (3, 2)))
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    (plain,) = verify([VerifyRequest(Draft.chain([]), sampling, key=1, length=5)], logits[:1])
    assert verify([VerifyRequest(Draft.chain([3]), sampling, key=1, length=5)], logits) == [plain]
    logits[1] = float("nan")
    free = SamplingParams(seed=1)
    (plain,) = verify([VerifyRequest(Draft.chain([]), free, key=1, length=5)], logits[:1])
    wrong = (plain.next_token + 1) % 6
    assert verify([VerifyRequest(Draft.chain([wrong]), free, key=1, length=5)], logits) == [plain]


@pytest.mark.parametrize("place", [0, 1])
def test_every_q_is_held_against_the_vocabulary(place: int) -> None:
    q = [Proposal(torch.full((64,), 1 / 64)), Proposal(torch.full((64,), 1 / 64))]
    q[place] = Proposal(torch.full((40,), 1 / 40))
    with pytest.raises(VocabularyMismatch, match="a q over 40 tokens"):
        verify(
            [VerifyRequest(Draft.chain([1, 2], q=q), SamplingParams(), key=0, length=0)], torch.zeros(3, 64)
        )


def test_a_q_in_low_precision_is_refused() -> None:
    draft = Draft.chain([1], q=[Proposal(torch.full((4,), 0.25).bfloat16())])
    with pytest.raises(InvalidDraft, match="draw from float32"):
        verify([VerifyRequest(draft, SamplingParams(), key=0, length=0)], torch.zeros(2, 4))


def test_a_token_drawn_twice_without_replacement_is_refused() -> None:
    q = Proposal(torch.full((4,), 0.25), replacement=False)
    draft = Draft(np.array([1, 1]), np.array([-1, -1]), np.ones(2, dtype=bool), {-1: q})
    logits = torch.tensor([[0.0, -50.0, 0.0, 0.0]]).repeat(3, 1)
    with pytest.raises(InvalidDraft, match="drawn twice"):
        verify([VerifyRequest(draft, SamplingParams(), key=0, length=0)], logits)


def test_a_stray_q_does_not_serve_another_request() -> None:
    q = Proposal(torch.full((4,), 0.25))
    stray = Draft(np.array([1]), np.array([-1]), np.ones(1, dtype=bool), {-1: q, 1: q})
    without = Draft(np.array([1]), np.array([-1]), np.ones(1, dtype=bool))
    with pytest.raises(InvalidDraft, match="request 1: sampled children came without"):
        verify(
            [VerifyRequest(each, SamplingParams(), key=0, length=0) for each in (stray, without)],
            torch.zeros(4, 4),
        )


@pytest.mark.parametrize("key", [2**63, 2**64 - 1, -(2**63), -1])
def test_every_seed_torch_takes_is_a_key(key: int) -> None:
    (verdict,) = verify(
        [VerifyRequest(Draft.chain([]), SamplingParams(seed=1), key=key, length=1)], torch.zeros(1, 50)
    )
    assert 0 <= verdict.next_token < 50


@pytest.mark.parametrize("lenience", [0.0, -0.5, 1.5, float("nan")])
def test_lenience_has_its_range(lenience: float) -> None:
    with pytest.raises(InvalidSampling, match="lenience is"):
        VerifyRequest(Draft.chain([]), SamplingParams(), key=0, length=0, lenience=lenience)


def test_lenience_does_not_hide_a_broken_model() -> None:
    each = VerifyRequest(Draft.chain([]), SamplingParams(temperature=0), key=0, length=0, lenience=0.5)
    with pytest.raises(InvalidDistribution):
        verify([each], torch.full((1, 4), float("nan")))


def test_a_history_is_what_was_said_when_it_was_made() -> None:
    output = [1]
    history = TokenHistory([0], output)
    output.append(2)
    assert history.output == (1,)


def random_draft(kind: str, dice: np.random.Generator, size: int) -> Draft:
    """A chain of up to 40 guesses, or a tree as large; the first guess is drawn, others drawn or chosen."""
    num = int(dice.integers(1, 40))
    reach = 1 if kind == "chain" else 6
    parents = [int(dice.integers(max(-1, node - reach), node)) for node in range(num)]
    q = {}
    for parent in set(parents):
        weights = torch.from_numpy(dice.random(size).astype(np.float32) + 0.1)
        q[parent] = Proposal(weights / weights.sum(), bool(dice.random() < 0.5))
    tokens: list[int] = []
    sampled: list[bool] = []
    for node, parent in enumerate(parents):
        used = {tokens[i] for i in range(node) if parents[i] == parent and sampled[i]}
        left = [x for x in range(size) if q[parent].replacement or x not in used]
        sampled.append(node == 0 or bool(dice.random() < 0.8))
        tokens.append(int(dice.choice(left)))
    return Draft(np.array(tokens), np.array(parents), np.array(sampled), q)


@pytest.mark.parametrize(("kind", "verifier"), [("chain", "reject"), ("chain", "block"), ("tree", "reject")])
def test_the_production_target_gives_what_whole_rows_of_p_give(kind: str, verifier: str) -> None:
    """Long chains and wide trees, past what is read ahead and what is judged in one go."""
    dice = np.random.default_rng(5)
    size, num = 30, 150
    sampling = SamplingParams(temperature=0.3)
    rounds = [VerifyRequest(random_draft(kind, dice, size), sampling, key, 7) for key in range(num)]
    forest = Forest.pack([each.draft for each in rounds])
    rows = np.arange(forest.num_rows)
    logits = torch.randn(len(rows), size, generator=torch.Generator().manual_seed(5)) * 0.01
    guesses = np.flatnonzero(forest.parent >= 0)
    logits[forest.parent[guesses], forest.tokens[guesses]] += 1.0
    settings = BatchSampling.of([sampling] * num)
    u, v = verification_noise(
        TargetDistribution(logits, rows, forest, settings, np.arange(num), np.full(num, 7), [])
    )
    whole = probabilities(logits, settings[forest.request_of(rows)])
    expected = (block_verify if verifier == "block" else rejection_sample)(forest, whole, u, v)
    verdicts = verify(rounds, logits, verifier)  # type: ignore[arg-type]
    assert verdicts == expected
    assert max(len(verdict.accepted) for verdict in verdicts) > 8


def decode(
    model: Callable[[list[int]], torch.Tensor],
    sampling: SamplingParams,
    guess: Callable[[list[int]], Draft],
    num_tokens: int,
) -> list[int]:
    """A whole generation through `verify`, with a model that maps tokens to logits at every position."""
    tokens = [1, 2, 3]
    while len(tokens) < 3 + num_tokens:
        draft = guess(tokens)
        rows = [model(tokens)[-1]]
        for node in range(len(draft)):
            path = [int(draft.tokens[i]) for i in draft.path(node)]
            rows.append(model(tokens + path)[-1])
        history = TokenHistory(tokens[:3], tokens[3:])
        each = VerifyRequest(draft, sampling, key=sampling.seed or 0, length=len(tokens), history=history)
        tokens += verify([each], torch.stack(rows))[0].tokens(draft)
    return tokens[3 : 3 + num_tokens]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0),
        SamplingParams(seed=3),
        SamplingParams(temperature=0.8, top_p=0.95, seed=4),
        SamplingParams(
            temperature=1.2, top_k=5, min_p=0.02, seed=5, presence_penalty=0.5, frequency_penalty=0.3
        ),
        SamplingParams(temperature=0, repetition_penalty=1.5, bad_words=((4, 5), (6,)), logit_bias={7: 1.5}),
    ],
)
def test_a_real_model_says_the_same_words_whatever_is_guessed(
    tiny_llama: torch.nn.Module, sampling: SamplingParams
) -> None:
    """Greedy and seeded, with wrong chains, wrong trees, and guesses that are the plain answer itself."""

    def model(tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = tiny_llama(torch.tensor([tokens])).logits[0]
        return logits

    dice = np.random.default_rng(0)

    def chain(tokens: list[int]) -> Draft:
        return Draft.chain(dice.integers(0, 16, 4))

    def tree(tokens: list[int]) -> Draft:
        return Draft(dice.integers(0, 16, 5), np.array([-1, -1, 0, 0, 1]), np.zeros(5, dtype=bool))

    plain = decode(model, sampling, lambda tokens: Draft.chain([]), 24)
    right = decode(model, sampling, lambda tokens: Draft.chain(plain[len(tokens) - 3 :][:6]), 24)
    assert right == plain
    assert decode(model, sampling, chain, 24) == plain
    assert decode(model, sampling, tree, 24) == plain


@pytest.mark.parametrize("verifier", ["reject", "block", "follow"])
def test_sampled_guesses_leave_the_law_of_the_first_token_unchanged(verifier: str) -> None:
    """Production noise and production p, 20,000 rounds, chi-square at one in a thousand."""
    generator = torch.Generator().manual_seed(7)
    size, rounds_ = 12, 20_000
    logits = torch.randn(3, size, generator=generator)
    q = torch.softmax(torch.randn(2, size, generator=generator), dim=-1)
    guesses = torch.stack(
        [torch.multinomial(q[i], rounds_, replacement=True, generator=generator) for i in range(2)], 1
    )
    rounds = [
        VerifyRequest(
            Draft.chain(row, q=[Proposal(q[0]), Proposal(q[1])]),
            SamplingParams(temperature=0.9),
            key=i,
            length=5,
        )
        for i, row in enumerate(guesses.tolist())
    ]
    verdicts = verify(rounds, logits.repeat(rounds_, 1), verifier)  # type: ignore[arg-type]
    first = [verdict.tokens(each.draft)[0] for each, verdict in zip(rounds, verdicts, strict=True)]
    p = torch.softmax(logits[0].double() / 0.9, dim=-1).numpy()
    assert stats.chisquare(np.bincount(first, minlength=size), p * rounds_).pvalue > 1e-3


def test_the_law_test_notices_a_wrong_q() -> None:
    generator = torch.Generator().manual_seed(7)
    size, rounds_ = 12, 20_000
    logits = torch.randn(2, size, generator=generator)
    q = torch.softmax(torch.randn(size, generator=generator), dim=-1)
    flat = Proposal(torch.full((size,), 1.0 / size))
    guesses = torch.multinomial(q, rounds_, replacement=True, generator=generator).tolist()
    rounds = [
        VerifyRequest(Draft.chain([x], q=[flat]), SamplingParams(), key=i, length=5)
        for i, x in enumerate(guesses)
    ]
    verdicts = verify(rounds, logits.repeat(rounds_, 1), "reject")
    first = [verdict.tokens(each.draft)[0] for each, verdict in zip(rounds, verdicts, strict=True)]
    p = torch.softmax(logits[0].double(), dim=-1).numpy()
    assert stats.chisquare(np.bincount(first, minlength=size), p * rounds_).pvalue < 1e-9


def test_a_lenient_greedy_round_keeps_what_is_nearly_best() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.4, 0.1], [0.2, 0.2, 0.6]]))
    each = VerifyRequest(Draft.chain([1]), SamplingParams(temperature=0), key=0, length=0, lenience=0.7)
    assert verify([each], logits) == [Verdict((0,), 2)]
    strict = VerifyRequest(Draft.chain([1]), SamplingParams(temperature=0), key=0, length=0, lenience=0.9)
    assert verify([strict], logits) == [Verdict((), 0)]


def test_drawn_guesses_that_were_joined_with_others_are_never_judged_as_a_whole() -> None:
    """Whether the joined tree is a chain depends on what was drawn; which verifier judges it must not."""
    q = Proposal(torch.full((4,), 0.25))
    draft = Draft.chain([1, 2], q=[q, q])
    for verifier in ("auto", "block"):
        assert method_for(VerifyRequest(draft, SamplingParams(), 1, 5), verifier) is Method.BLOCK
        assert (
            method_for(VerifyRequest(draft, SamplingParams(), 1, 5, jointly=False), verifier) is Method.REJECT
        )
