from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.match_tree import EVIDENCE, FROM, RECORD
from forerun.drafters.matches import BREAK
from forerun.drafters.suffix import DEEPEST, SuffixDrafter
from forerun.errors import ConfigurationError
from forerun.types import Draft, Drafter, RequestView, Verdict

SECRET = [91, 92, 93, 94, 95, 96, 97, 98]
QUESTION = [1, 2, 3, 4, 5]


def paths(draft: Draft) -> list[list[int]]:
    return [draft.tokens[draft.path(node)].tolist() for node in range(len(draft))]


def said(
    drafter: SuffixDrafter, name: str, prompt: Sequence[int], output: Sequence[int], **view: str
) -> None:
    """Let a request say something, a token at a time, and end."""
    for length in range(1, len(output) + 1):
        tokens = [*prompt, *output[:length]]
        drafter.propose([RequestView(name, tokens, num_prompt=len(prompt), salt=view.get("salt"))], [4])
    drafter.forget(name)


def test_it_is_a_drafter() -> None:
    assert isinstance(SuffixDrafter(), Drafter)


def test_it_guesses_what_followed_before() -> None:
    (draft,) = SuffixDrafter(chain=True).propose([RequestView("r", [7, 8, 9, 10, 11, 7, 8, 9])], [4])
    assert draft.tokens.tolist() == [10, 11, 7, 8]
    assert draft.source == ("suffix",) * 4
    assert not draft.sampled.any()


def test_a_tree_branches_where_continuations_differ() -> None:
    (draft,) = SuffixDrafter().propose([RequestView("r", [1, 2, 3, 8, 1, 2, 4, 8, 1, 2])], [8])
    assert {3, 4} <= {int(draft.tokens[node]) for node in range(8) if draft.parents[node] == -1}
    draft.check()


def test_a_text_that_repeats_itself_is_guessed_beyond_its_end() -> None:
    (draft,) = SuffixDrafter(chain=True).propose([RequestView("r", [1, 2, 3, 1, 2, 3, 1])], [8])
    assert draft.tokens.tolist() == [2, 3, 1, 2, 3, 1, 2, 3]


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=80), min_size=1, max_size=5),
    st.lists(st.integers(-1, 100), min_size=5, max_size=5),
)
def test_no_draft_exceeds_its_budget_and_none_depends_on_its_neighbours(
    texts: list[list[int]], budgets: list[int]
) -> None:
    views = [RequestView(str(number), text) for number, text in enumerate(texts)]
    together = SuffixDrafter().propose(views, budgets[: len(views)])
    assert len(together) == len(views)
    for view, budget, draft in zip(views, budgets, together, strict=False):
        draft.check()
        assert len(draft) <= max(budget, 0)
        assert draft.evidence is None or draft.evidence.shape == (len(draft), len(EVIDENCE))
        (alone,) = SuffixDrafter().propose([view], [budget])
        assert alone.tokens.tolist() == draft.tokens.tolist()
        assert alone.parents.tolist() == draft.parents.tolist()


@given(st.lists(st.integers(0, 3), min_size=2, max_size=100), st.lists(st.integers(1, 9), max_size=30))
def test_a_request_that_grew_is_guessed_as_if_it_had_come_whole(text: list[int], steps: list[int]) -> None:
    grown = SuffixDrafter()
    length = 1
    for step in steps:
        grown.propose([RequestView("r", text[:length])], [3])
        length = min(length + step, len(text))
    (one,) = grown.propose([RequestView("r", np.array(text))], [16])
    (other,) = SuffixDrafter().propose([RequestView("r", text)], [16])
    assert paths(one) == paths(other)


def test_nobody_to_guess_for_is_no_draft() -> None:
    assert SuffixDrafter().propose([], []) == []


def test_a_forgotten_request_leaves_nothing() -> None:
    drafter = SuffixDrafter()
    drafter.propose([RequestView("r", [*QUESTION, *SECRET])], [4])
    drafter.forget("r")
    drafter.forget("r")
    (draft,) = drafter.propose([RequestView("r", [0] * 20 + [*QUESTION, SECRET[0]])], [4])
    assert not set(SECRET[1:]) & set(draft.tokens.tolist())


@pytest.mark.parametrize("salt", ["victim", "attacker"])
def test_an_id_that_comes_again_is_another_request(salt: str) -> None:
    """Its salt is another, or its text is shorter: what the first one said is not known any more."""
    drafter = SuffixDrafter()
    drafter.propose([RequestView("r", [*QUESTION, *SECRET, *QUESTION], salt="victim")], [4])
    length = 30 if salt == "attacker" else 3
    view = RequestView("r", [0] * (length - 2) + [QUESTION[-1], SECRET[0]], salt=salt)
    (draft,) = drafter.propose([view], [16])
    assert not set(SECRET[1:]) & set(draft.tokens.tolist())


def test_several_threads_do_not_meet() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    errors: list[str] = []

    def ask(salt: str, base: int) -> None:
        for number in range(150):
            text = [base + token % 7 for token in range(40 + number % 5)]
            name = f"{salt}-{number}"
            (draft,) = drafter.propose([RequestView(name, text, num_prompt=5, salt=salt)], [64])
            if any(not base <= token < base + 7 for token in draft.tokens.tolist()):
                errors.append(salt)
            drafter.forget(name)

    threads = [threading.Thread(target=ask, args=(salt, 100 * n)) for n, salt in enumerate("abcd")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_bounds_too_small_to_work_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 64 and 128"):
        SuffixDrafter(most_tokens=1)
    with pytest.raises(ConfigurationError, match="at least 64 and 128"):
        SuffixDrafter(store_tokens=3)


def test_an_output_is_kept_whole_though_nobody_guessed_for_a_while() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    said_so_far = [*QUESTION, 50]
    for budget, new in ((4, 51), (0, 52), (0, 53), (4, 54)):
        (draft,) = drafter.propose([RequestView("first", said_so_far, num_prompt=5)], [budget])
        drafter.learn("first", draft, Verdict((), new))
        said_so_far.append(new)
    drafter.learn("first", Draft.chain([]), Verdict((), 55))
    drafter.forget("first")
    assert drafter.store is not None
    (index,) = drafter.store.indexes(None)
    assert index.text.tolist() == [50, 51, 52, 53, 54, 55, BREAK]


def test_a_request_beyond_its_bound_shares_what_is_left_of_its_output() -> None:
    drafter = SuffixDrafter(share_outputs=True, most_tokens=64)
    said(drafter, "first", QUESTION, list(range(100, 300)))
    assert drafter.store is not None
    (index,) = drafter.store.indexes(None)
    kept = index.text.tolist()[:-1]
    assert 32 <= len(kept) <= 64
    assert kept == list(range(300 - len(kept), 300))


def test_guesses_say_whose_text_they_come_from() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    said(drafter, "first", QUESTION, SECRET)
    (draft,) = drafter.propose([RequestView("second", [*QUESTION, *SECRET[:3]], num_prompt=5)], [4])
    assert draft.evidence is not None
    assert draft.evidence[0, FROM] == 0b010


def test_a_large_tree_is_grown_whole() -> None:
    rng = np.random.default_rng(0)
    drafter = SuffixDrafter(share_outputs=True)
    for number in range(4):
        said(drafter, str(number), [1], rng.integers(0, 8, 100).tolist())
    (draft,) = drafter.propose([RequestView("r", rng.integers(0, 8, 500), num_prompt=1)], [1000])
    draft.check(vocab_size=8)
    assert len(draft) > 300


def test_drafts_of_others_teach_nothing_and_break_nothing() -> None:
    drafter = SuffixDrafter()
    drafter.propose([RequestView("r", [1, 2, 1])], [4])
    few = np.zeros((1, 2), dtype=np.float32)
    drafter.learn("r", Draft.chain([2], source="suffix", evidence=few), Verdict((0,), 3))
    drafter.learn("r", Draft.chain([2], source="other"), Verdict((0,), 3))
    drafter.learn(
        "r", Draft.chain([2], source="suffix", evidence=np.zeros((1, 7), dtype=np.float32)), Verdict((5,), 3)
    )
    assert drafter._requests["r"].record.tolist() == [0.5] * 3


def test_earlier_outputs_are_guessed_only_where_that_is_turned_on() -> None:
    for share in (False, True):
        drafter = SuffixDrafter(share_outputs=share)
        said(drafter, "first", QUESTION, SECRET)
        (draft,) = drafter.propose([RequestView("second", [*QUESTION, *SECRET[:3]], num_prompt=5)], [4])
        assert (SECRET[3] in draft.tokens) == share


def test_what_a_prompt_says_is_never_guessed_to_another() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    said(drafter, "first", [*QUESTION, *SECRET], [7, 7])
    (draft,) = drafter.propose([RequestView("second", [*QUESTION, *SECRET[:3]], num_prompt=5)], [16])
    assert SECRET[3] not in draft.tokens


def test_where_the_prompt_ends_must_be_known_to_share_an_output() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    drafter.propose([RequestView("first", [*QUESTION, *SECRET])], [4])
    drafter.forget("first")
    assert drafter.store is not None
    assert len(drafter.store) == 0


def probe(drafter: SuffixDrafter, salt: str | None, num_tries: int = 200) -> set[int]:
    """Everything an attacker of one salt is offered: every prefix of the secret, and everything else."""
    rng = np.random.default_rng(0)
    offered: set[int] = set()
    for number in range(num_tries):
        guess = SECRET[: number % 8] if number % 2 else rng.integers(0, 100, 12).tolist()
        name = f"probe-{number}"
        tokens = [*QUESTION, *guess, *SECRET[: 1 + number % 7]]
        for budget in (1, 16, 64):
            view = RequestView(name, tokens, num_prompt=5, salt=salt)
            (draft,) = drafter.propose([view], [budget])
            known = set(tokens)
            offered |= {int(token) for token in draft.tokens} - known
        # The attacker's own requests are not kept, lest it be offered its own guesses.
        drafter._requests.pop(name)
    return offered


@pytest.mark.parametrize("salt", [None, "", "other", "victim ", "VICTIM"])
def test_no_probe_under_another_salt_is_offered_a_secret(salt: str | None) -> None:
    drafter = SuffixDrafter(share_outputs=True)
    for number in range(5):
        said(drafter, f"victim-{number}", QUESTION, SECRET, salt="victim")
    assert not probe(drafter, salt) & set(SECRET)
    assert probe(drafter, "victim") & set(SECRET), "the probe finds what is there to be found"


def test_requests_without_a_salt_are_one_group_and_no_other() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    said(drafter, "victim", QUESTION, SECRET)
    assert not probe(drafter, "somebody") & set(SECRET)
    assert probe(drafter, None) & set(SECRET)


def test_the_last_tokens_of_an_output_are_kept_too() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    (draft,) = drafter.propose([RequestView("first", [*QUESTION, 50, 51], num_prompt=5)], [4])
    drafter.learn("first", draft, Verdict((), 52))
    drafter.forget("first")
    (draft,) = drafter.propose([RequestView("second", [60, 50, 51], num_prompt=1)], [1])
    assert draft.tokens.tolist() == [52]


def test_a_source_that_was_wrong_loses_its_good_record() -> None:
    drafter = SuffixDrafter()
    view = RequestView("r", [1, 2, 3, 4, 1, 2])
    (first,) = drafter.propose([view], [2])
    for _ in range(5):
        drafter.learn("r", first, Verdict((), 9))
    (worse,) = drafter.propose([view], [2])
    for _ in range(20):
        drafter.learn("r", first, Verdict((0,), 4))
    (better,) = drafter.propose([view], [2])
    assert first.evidence is not None
    assert worse.evidence is not None
    assert better.evidence is not None
    assert worse.evidence[0, RECORD] < first.evidence[0, RECORD] < better.evidence[0, RECORD] <= 1
    assert first.evidence[0, FROM] == 1


def test_learning_of_a_request_nobody_knows_is_nothing() -> None:
    SuffixDrafter(share_outputs=True).learn("unknown", Draft.chain([1]), Verdict((), 2))


def test_a_guess_never_reaches_further_than_promised() -> None:
    (draft,) = SuffixDrafter(chain=True).propose([RequestView("r", [1, 2] * 200)], [500])
    assert len(draft) == DEEPEST
