"""Candidate draft tokens of a batch in flat arrays."""

from __future__ import annotations

import numpy as np

from forerun.control.candidates import select_drafts
from forerun.types import Draft
from unit.control.lookup_steps import lookup_draft


def test_selecting_drafts_together_equals_selecting_each() -> None:
    drafts = [lookup_draft(0.9, 0.8, 0.7), lookup_draft(), lookup_draft(0.5), lookup_draft(0.6, 0.5)]
    for keep in ([1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0] * 6, [1] * 6):
        mask = np.array(keep, dtype=bool)
        slices = [slice(0, 3), slice(3, 3), slice(3, 4), slice(4, 6)]
        lengths = [len(draft.select(mask[each])) for draft, each in zip(drafts, slices, strict=True)]
        assert [len(draft) for draft in select_drafts(drafts, mask)] == lengths
    tree = Draft(np.array([1, 2, 3]), np.array([-1, -1, 1]), np.zeros(3, dtype=bool))
    (left,) = select_drafts([tree], np.array([False, True, True]))
    assert left.tokens.tolist() == [2, 3]
    assert left.parents.tolist() == [-1, 0]
