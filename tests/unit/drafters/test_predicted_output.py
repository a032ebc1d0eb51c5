"""The prediction drafter: alignment of outputs with predictions, drafts, and counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.drafters.predicted_output import MAX_CANDIDATES, Alignment, PredictionDrafter, count_predicted
from forerun.types import IntArray, RequestView

PREDICTION = [*range(100, 140)]


def steps_of(prediction: Sequence[int], output: Sequence[int], budget: int = 16) -> int:
    """The steps that a target with this output takes if every step verifies the prediction's draft."""
    alignment, done, num_steps = Alignment(prediction), 0, 0
    while done < len(output):
        tokens, _ = alignment.propose(budget)
        num_accepted = 0
        while num_accepted < min(len(tokens), len(output) - done - 1):
            if tokens[num_accepted] != output[done + num_accepted]:
                break
            num_accepted += 1
        alignment.extend(output[done : done + num_accepted + 1])
        done += num_accepted + 1
        num_steps += 1
    return num_steps


def test_an_output_that_equals_the_prediction_is_drafted_from_its_first_token() -> None:
    assert steps_of(PREDICTION, PREDICTION, budget=64) == 1
    assert steps_of(PREDICTION, PREDICTION, budget=7) == 5


@pytest.mark.parametrize(
    ("output", "num_steps"),
    [
        ([*PREDICTION[:10], 7, *PREDICTION[11:]], 2),  # replaced: the divergence emits the new token
        ([*PREDICTION[:10], *PREDICTION[14:]], 2),  # deleted: the next token is found again
        ([*PREDICTION[:10], 7, 8, 9, *PREDICTION[10:]], 5),  # inserted: until a predicted token follows
        ([1, 2, 3, *PREDICTION], 4),  # preceded by other text
        ([*PREDICTION[20:], *PREDICTION[:20]], 5),  # moved: two tokens realign at either place
    ],
    ids=["replaced", "deleted", "inserted", "preceded", "moved"],
)
def test_drafting_resumes_after_a_divergence(output: list[int], num_steps: int) -> None:
    assert steps_of(PREDICTION, output, budget=64) == num_steps


def test_the_longest_context_wins_and_the_nearest_of_equals() -> None:
    prediction = [1, 2, 3, 50, 51, 1, 2, 9, 60, 61, 1, 2, 3, 70, 71]
    alignment = Alignment(prediction)
    alignment.extend([1, 2, 3, 50, 51, 77, 1, 2, 3])
    assert alignment.propose(2)[0] == [70, 71]
    alignment = Alignment([*range(10), 5, 90, *range(200, 300), 5, 91])
    alignment.extend([0, 1, 2, 3, 4, 77, 5])
    assert alignment.propose(1)[0] == [6]


def test_survival_falls_with_depth_and_follows_the_outcomes_of_the_request() -> None:
    right, wrong = Alignment(PREDICTION), Alignment([*PREDICTION] * 8)
    right.extend(PREDICTION[:20])
    for _ in range(30):
        wrong.extend([wrong.prediction[3], 9999])
    good, bad = right.propose(8)[1], wrong.propose(8)[1]
    assert (np.diff(good) < 0).all()
    assert good[-1] > 0.8
    assert bad[0] < 0.35


def test_counts_add_up_to_the_prediction() -> None:
    assert count_predicted(PREDICTION, [PREDICTION]) == (40, 0)
    assert count_predicted(PREDICTION, [PREDICTION[:10]]) == (10, 30)
    assert count_predicted(PREDICTION, [[*PREDICTION[:10], 7, *PREDICTION[11:]]]) == (39, 1)
    assert count_predicted(PREDICTION, [[1, 2, 3]]) == (0, 40)
    assert count_predicted(PREDICTION, [PREDICTION, [1]]) == (40, 40)
    assert count_predicted([], [PREDICTION]) == (0, 0)


def test_drafts_depend_on_the_tokens_alone() -> None:
    rng = np.random.default_rng(0)
    output = [*PREDICTION[:5], *rng.integers(100, 140, 60).tolist(), *PREDICTION[5:]]
    every_step, at_once = PredictionDrafter(), PredictionDrafter()
    view = RequestView("a", [1, 2], num_prompt=2, prediction=PREDICTION)
    for token in output:
        view.tokens.append(token)  # type: ignore[attr-defined]
        (draft,) = every_step.propose([view], [8])
    (expected,) = at_once.propose([view], [8])
    assert draft.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_array_equal(draft.survival, expected.survival)


def test_a_request_never_sees_another_prediction() -> None:
    drafter = PredictionDrafter()
    views = [
        RequestView("a", [1], num_prompt=1, prediction=[5, 6, 7]),
        RequestView("b", [1], num_prompt=1, prediction=[8, 9]),
        RequestView("c", [1], num_prompt=1),
    ]
    drafts = drafter.propose(views, [2, 8, 8])
    assert [draft.tokens.tolist() for draft in drafts] == [[5, 6], [8, 9], []]
    assert [set(draft.source) for draft in drafts] == [{"prediction"}, {"prediction"}, set()]
    drafter.forget("a")
    (draft,) = drafter.propose([RequestView("a", [1], num_prompt=1, prediction=[4])], [8])
    assert draft.tokens.tolist() == [4]


def test_a_request_that_starts_anew_is_aligned_anew() -> None:
    drafter = PredictionDrafter()
    drafter.propose([RequestView("a", [1, 100, 101], num_prompt=1, prediction=PREDICTION)], [2])
    (draft,) = drafter.propose([RequestView("a", [1], num_prompt=1, prediction=PREDICTION)], [2])
    assert draft.tokens.tolist() == PREDICTION[:2]


def test_a_divergence_compares_a_bounded_number_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = [*range(1000, 1100), *([7, 8] * 100_000), *range(2000, 2100), *([7, 8] * 100_000)]
    alignment = Alignment(prediction)
    sizes: list[int] = []
    nearest = alignment._nearest

    def count(token: int) -> IntArray:
        found = nearest(token)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(alignment, "_nearest", count)
    alignment.extend([*range(1000, 1100), 7, 8, 7, 5, 7, 6, 8])
    assert max(sizes) == MAX_CANDIDATES
    alignment.extend([5, *range(2000, 2004)])
    assert alignment.propose(1)[0] == [2004]
