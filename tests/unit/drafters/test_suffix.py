from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.matches import BREAK
from forerun.drafters.suffix import MAX_DEPTH, SuffixDrafter
from forerun.errors import ConfigurationError
from forerun.types import Draft, Drafter, LogitsDrafter, RequestView, TopTokens, Verdict

SECRET = [91, 92, 93, 94, 95, 96, 97, 98]
PROMPT = [1, 2, 3, 4, 5]


def paths(draft: Draft) -> list[list[int]]:
    return [draft.tokens[draft.path(node)].tolist() for node in range(len(draft))]


def emit_output(
    drafter: SuffixDrafter, name: str, prompt: Sequence[int], output: Sequence[int], **view: str
) -> None:
    """Run a request that emits `output`, one token per step, and finish it."""
    for length in range(1, len(output) + 1):
        tokens = [*prompt, *output[:length]]
        drafter.propose([RequestView(name, tokens, num_prompt=len(prompt), salt=view.get("salt"))], [4])
    drafter.forget(name)


def test_it_is_a_drafter() -> None:
    assert isinstance(SuffixDrafter(), Drafter)
    assert isinstance(SuffixDrafter(), LogitsDrafter)


def test_it_proposes_what_followed_before() -> None:
    (draft,) = SuffixDrafter(chain=True).propose([RequestView("r", [7, 8, 9, 10, 11, 7, 8, 9])], [4])
    assert draft.tokens.tolist() == [10, 11, 7, 8]
    assert draft.source == ("suffix",) * 4
    assert not draft.sampled.any()


def test_a_tree_branches_where_continuations_differ() -> None:
    (draft,) = SuffixDrafter().propose([RequestView("r", [1, 2, 3, 8, 1, 2, 4, 8, 1, 2])], [8])
    assert {3, 4} <= {int(draft.tokens[node]) for node in range(8) if draft.parents[node] == -1}
    draft.check()


def test_a_repeating_text_is_continued_beyond_its_end() -> None:
    (draft,) = SuffixDrafter(chain=True).propose([RequestView("r", [1, 2, 3, 1, 2, 3, 1])], [8])
    assert draft.tokens.tolist() == [2, 3, 1, 2, 3, 1, 2, 3]


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=80), min_size=1, max_size=5),
    st.lists(st.integers(-1, 100), min_size=5, max_size=5),
)
def test_drafts_stay_within_budget_and_do_not_depend_on_the_batch(
    texts: list[list[int]], budgets: list[int]
) -> None:
    views = [RequestView(str(number), text) for number, text in enumerate(texts)]
    together = SuffixDrafter().propose(views, budgets[: len(views)])
    assert len(together) == len(views)
    for view, budget, draft in zip(views, budgets, together, strict=False):
        draft.check()
        assert len(draft) <= max(budget, 0)
        assert draft.survival is None or draft.survival.shape == (len(draft),)
        (alone,) = SuffixDrafter().propose([view], [budget])
        assert alone.tokens.tolist() == draft.tokens.tolist()
        assert alone.parents.tolist() == draft.parents.tolist()


@given(st.lists(st.integers(0, 3), min_size=2, max_size=100), st.lists(st.integers(1, 9), max_size=30))
def test_drafts_do_not_depend_on_how_the_text_is_split(text: list[int], steps: list[int]) -> None:
    incremental = SuffixDrafter()
    length = 1
    for step in steps:
        incremental.propose([RequestView("r", text[:length])], [3])
        length = min(length + step, len(text))
    (one,) = incremental.propose([RequestView("r", np.array(text))], [16])
    (other,) = SuffixDrafter().propose([RequestView("r", text)], [16])
    assert paths(one) == paths(other)


def test_no_requests_give_no_drafts() -> None:
    assert SuffixDrafter().propose([], []) == []


def test_a_forgotten_request_leaves_no_state() -> None:
    drafter = SuffixDrafter()
    drafter.propose([RequestView("r", [*PROMPT, *SECRET])], [4])
    drafter.forget("r")
    drafter.forget("r")
    (draft,) = drafter.propose([RequestView("r", [0] * 20 + [*PROMPT, SECRET[0]])], [4])
    assert not set(SECRET[1:]) & set(draft.tokens.tolist())


@pytest.mark.parametrize("salt", ["victim", "attacker"])
def test_a_reused_id_is_another_request(salt: str) -> None:
    """A different salt or a shorter text discards the state of the first request."""
    drafter = SuffixDrafter()
    drafter.propose([RequestView("r", [*PROMPT, *SECRET, *PROMPT], salt="victim")], [4])
    length = 30 if salt == "attacker" else 3
    view = RequestView("r", [0] * (length - 2) + [PROMPT[-1], SECRET[0]], salt=salt)
    (draft,) = drafter.propose([view], [16])
    assert not set(SECRET[1:]) & set(draft.tokens.tolist())


def test_concurrent_threads_do_not_share_text() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    errors: list[str] = []

    def draft_repeatedly(salt: str, base: int) -> None:
        for number in range(150):
            text = [base + token % 7 for token in range(40 + number % 5)]
            name = f"{salt}-{number}"
            (draft,) = drafter.propose([RequestView(name, text, num_prompt=5, salt=salt)], [64])
            if any(not base <= token < base + 7 for token in draft.tokens.tolist()):
                errors.append(salt)
            drafter.forget(name)

    threads = [
        threading.Thread(target=draft_repeatedly, args=(salt, 100 * n)) for n, salt in enumerate("abcd")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_too_small_bounds_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="at least 64 and 128"):
        SuffixDrafter(max_tokens=1)
    with pytest.raises(ConfigurationError, match="at least 64 and 128"):
        SuffixDrafter(store_tokens=3)


def test_the_whole_output_is_stored_despite_steps_without_drafting() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    tokens_so_far = [*PROMPT, 50]
    for budget, new in ((4, 51), (0, 52), (0, 53), (4, 54)):
        (draft,) = drafter.propose([RequestView("first", tokens_so_far, num_prompt=5)], [budget])
        drafter.learn("first", draft, Verdict((), new))
        tokens_so_far.append(new)
    drafter.learn("first", Draft.chain([]), Verdict((), 55))
    drafter.forget("first")
    assert drafter.store is not None
    (index,) = drafter.store.indexes(None)
    assert index.text.tolist() == [50, 51, 52, 53, 54, 55, BREAK]


def test_a_request_beyond_its_bound_shares_the_rest_of_its_output() -> None:
    drafter = SuffixDrafter(share_outputs=True, max_tokens=64)
    emit_output(drafter, "first", PROMPT, list(range(100, 300)))
    assert drafter.store is not None
    (index,) = drafter.store.indexes(None)
    stored = index.text.tolist()[:-1]
    assert 32 <= len(stored) <= 64
    assert stored == list(range(300 - len(stored), 300))


def test_a_large_tree_is_grown_completely() -> None:
    rng = np.random.default_rng(0)
    drafter = SuffixDrafter(share_outputs=True)
    for number in range(4):
        emit_output(drafter, str(number), [1], rng.integers(0, 8, 100).tolist())
    (draft,) = drafter.propose([RequestView("r", rng.integers(0, 8, 500), num_prompt=1)], [1000])
    draft.check(vocab_size=8)
    assert len(draft) > 300


def test_earlier_outputs_are_proposed_only_with_share_outputs() -> None:
    for share in (False, True):
        drafter = SuffixDrafter(share_outputs=share)
        emit_output(drafter, "first", PROMPT, SECRET)
        (draft,) = drafter.propose([RequestView("second", [*PROMPT, *SECRET[:3]], num_prompt=5)], [4])
        assert (SECRET[3] in draft.tokens) == share


def test_prompts_are_never_proposed_to_other_requests() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    emit_output(drafter, "first", [*PROMPT, *SECRET], [7, 7])
    (draft,) = drafter.propose([RequestView("second", [*PROMPT, *SECRET[:3]], num_prompt=5)], [16])
    assert SECRET[3] not in draft.tokens


def test_outputs_are_not_shared_without_a_known_prompt_length() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    drafter.propose([RequestView("first", [*PROMPT, *SECRET])], [4])
    drafter.forget("first")
    assert drafter.store is not None
    assert len(drafter.store) == 0


def probe(drafter: SuffixDrafter, salt: str | None, num_tries: int = 200) -> set[int]:
    """All tokens proposed to an attacker of one salt who sends prefixes of the secret and random text."""
    rng = np.random.default_rng(0)
    proposed: set[int] = set()
    for number in range(num_tries):
        prefix = SECRET[: number % 8] if number % 2 else rng.integers(0, 100, 12).tolist()
        name = f"probe-{number}"
        tokens = [*PROMPT, *prefix, *SECRET[: 1 + number % 7]]
        for budget in (1, 16, 64):
            view = RequestView(name, tokens, num_prompt=5, salt=salt)
            (draft,) = drafter.propose([view], [budget])
            known = set(tokens)
            proposed |= {int(token) for token in draft.tokens} - known
        # The attacker's own outputs are not stored, so that they are not proposed to it.
        drafter._requests.pop(name)
    return proposed


@pytest.mark.parametrize("salt", [None, "", "other", "victim ", "VICTIM"])
def test_no_probe_under_another_salt_gets_a_secret_token(salt: str | None) -> None:
    drafter = SuffixDrafter(share_outputs=True)
    for number in range(5):
        emit_output(drafter, f"victim-{number}", PROMPT, SECRET, salt="victim")
    assert not probe(drafter, salt) & set(SECRET)
    assert probe(drafter, "victim") & set(SECRET), "the probe finds the secret under its own salt"


def test_requests_without_a_salt_form_their_own_group() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    emit_output(drafter, "victim", PROMPT, SECRET)
    assert not probe(drafter, "other") & set(SECRET)
    assert probe(drafter, None) & set(SECRET)


def test_the_last_tokens_of_an_output_are_stored() -> None:
    drafter = SuffixDrafter(share_outputs=True)
    (draft,) = drafter.propose([RequestView("first", [*PROMPT, 50, 51], num_prompt=5)], [4])
    drafter.learn("first", draft, Verdict((), 52))
    drafter.forget("first")
    (draft,) = drafter.propose([RequestView("second", [60, 50, 51], num_prompt=1)], [1])
    assert draft.tokens.tolist() == [52]


def test_verdicts_on_unknown_requests_are_ignored() -> None:
    SuffixDrafter(share_outputs=True).learn("unknown", Draft.chain([1]), Verdict((), 2))


def test_drafts_stay_within_the_maximum_depth() -> None:
    (draft,) = SuffixDrafter(chain=True).propose([RequestView("r", [1, 2] * 200)], [500])
    assert len(draft) == MAX_DEPTH


def top_tokens(context: tuple[int, int], likeliest: int) -> TopTokens:
    """A row in which eight tokens from `likeliest` on are the likeliest."""
    tokens = np.arange(likeliest, likeliest + 8, dtype=np.int32)[None]
    return TopTokens(np.array([context], dtype=np.int32), tokens, np.float32(2.0) ** -np.arange(1, 9)[None])


def test_the_logits_of_verified_rows_are_recycled() -> None:
    drafter = SuffixDrafter(chain=True)
    view = RequestView("r", [1, 2])
    assert len(drafter.propose([view], [4])[0]) == 0
    drafter.learn_logits("r", top_tokens((1, 2), 40))
    drafter.learn_logits("r", top_tokens((2, 40), 50))
    (draft,) = drafter.propose([view], [4])
    assert draft.tokens.tolist()[:2] == [40, 50]
    drafter.forget("r")
    assert len(drafter.propose([view], [4])[0]) == 0, "a new request starts without rows"


def test_logits_of_unknown_requests_are_ignored() -> None:
    SuffixDrafter().learn_logits("unknown", top_tokens((1, 2), 40))


@pytest.mark.parametrize("share", [False, True])
def test_recycled_logits_reach_another_request_only_if_shared_and_only_within_a_salt(share: bool) -> None:
    drafter = SuffixDrafter(chain=True, share_outputs=share)
    drafter.propose([RequestView("first", PROMPT, num_prompt=5, salt="a")], [4])
    drafter.learn_logits("first", top_tokens((4, 5), SECRET[0]))
    for salt, reached in (("a", share), ("b", False), (None, False)):
        name = f"second of {salt}"
        (during,) = drafter.propose([RequestView(name, PROMPT, num_prompt=5, salt=salt)], [4])
        assert (SECRET[0] in during.tokens) == reached
    drafter.forget("first")
    for salt, reached in (("a", share), ("b", False), (None, False)):
        name = f"third of {salt}"
        (after,) = drafter.propose([RequestView(name, PROMPT, num_prompt=5, salt=salt)], [4])
        assert (SECRET[0] in after.tokens) == reached
