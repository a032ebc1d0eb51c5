"""The proposer for vLLM's `custom_class` hook, without vLLM: rows that move, requests that end, errors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forerun.engines import vllm as plugin_package
from forerun.engines.vllm import LookupProposer, NullProposer
from forerun.engines.vllm.metric_names import DRAFTER_ERRORS
from forerun.engines.vllm.proposer import RowTracker
from forerun.errors import ConfigurationError
from forerun.types import Draft, RequestView, Verdict

VOCAB = 100


def vllm_config(*, num_draft_tokens: int = 4, seqs: int = 4, **forerun: Any) -> Any:
    return SimpleNamespace(
        additional_config={"forerun": forerun} if forerun else {},
        speculative_config=SimpleNamespace(num_speculative_tokens=num_draft_tokens),
        scheduler_config=SimpleNamespace(max_num_seqs=seqs),
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB, tokenizer="nowhere", model="nowhere"),
    )


def proposed(
    proposer: LookupProposer, texts: Sequence[Sequence[int]], outputs: list[list[int]] | None = None
) -> list[list[int]]:
    """The drafts for rows with these texts, padded with stale tokens as in vLLM's buffer."""
    buffer = np.full((len(texts) + 2, 200), 77, dtype=np.int32)
    for row, text in enumerate(texts):
        buffer[row, : len(text)] = text
    lengths = np.array([len(text) for text in texts] + [0, 0], dtype=np.int32)
    return proposer.propose(outputs or [[text[-1]] for text in texts], lengths, buffer, slot_mappings=None)


def text_of(number: int, length: int) -> list[int]:
    """A periodic text, different for every number."""
    return [10 * number + token % 7 for token in range(length)]


def test_the_draft_is_the_continuation_of_the_last_match() -> None:
    (draft,) = proposed(LookupProposer(vllm_config()), [text_of(1, 30)])
    assert draft == text_of(1, 34)[30:]


@pytest.mark.parametrize("name", ["ngram", "suffix", "auto"])
def test_drafts_are_at_most_as_long_as_configured(name: str) -> None:
    for settings, max_length in (({}, 4), ({"max_draft": 2}, 2), ({"max_draft": 50}, 4)):
        proposer = LookupProposer(vllm_config(drafters=(name,), **settings))
        (draft,) = proposed(proposer, [text_of(1, 30)])
        assert 0 < len(draft) <= max_length


def test_the_draft_length_depends_on_the_evidence() -> None:
    proposer = LookupProposer(vllm_config(num_draft_tokens=16))
    sure, unsure, new = proposed(proposer, [text_of(1, 60), [1, 2, 3, 1, 4, 5, 1, 6, 7, 1], [50, 51, 52]])
    assert len(sure) == 16
    assert len(unsure) < 16
    assert len(new) < 4


def test_a_row_in_prefill_gets_no_draft() -> None:
    prefilling, decoding = proposed(
        LookupProposer(vllm_config()), [text_of(1, 30), text_of(2, 30)], outputs=[[], [21]]
    )
    assert prefilling == []
    assert decoding


def test_rows_that_move_keep_their_requests() -> None:
    proposer = LookupProposer(vllm_config())
    lengths = {number: 20 + number for number in range(4)}
    order = [0, 1, 2, 3]
    rng = np.random.default_rng(0)
    for _ in range(30):
        drafts = proposed(proposer, [text_of(number, lengths[number]) for number in order])
        for number, draft in zip(order, drafts, strict=True):
            continuation = text_of(number, lengths[number] + 4)[lengths[number] :]
            assert draft == continuation[: len(draft)]
            lengths[number] += int(rng.integers(1, 4))
        rng.shuffle(order)
    assert len(proposer.rows) == 4, "every request was recognized"


def test_a_new_request_in_a_row_shares_nothing_with_the_one_before() -> None:
    proposer = LookupProposer(vllm_config())
    proposed(proposer, [[1, 2, 3, 4, 5, 6]])
    (draft,) = proposed(proposer, [[9, 9, 9, 1, 2, 3, 8, 1, 2]])
    assert draft[:1] == [3]
    assert 4 not in draft


def test_requests_that_ended_are_forgotten() -> None:
    proposer = LookupProposer(vllm_config(seqs=3))
    rng = np.random.default_rng(0)
    for _ in range(50):
        proposed(proposer, rng.integers(0, VOCAB, (3, 20)).tolist())
    assert len(proposer.rows) == 6
    assert len(proposer.speculator.drafters["suffix"].drafter._requests) == 6  # type: ignore[attr-defined]


def test_requests_with_identical_text_are_tracked_separately() -> None:
    rows = RowTracker(max_requests=8)
    text = np.array([1, 2, 3], dtype=np.int32)
    occupants, _ = rows.assign([0, 1], [text, text])
    assert occupants[0] is not occupants[1]
    again, _ = rows.assign([0, 1], [np.append(text, 4), np.append(text, 5)])
    assert again == occupants
    swapped, _ = rows.assign([0, 1], [np.array([1, 2, 3, 5, 6]), np.array([1, 2, 3, 4, 7])])
    assert swapped == [occupants[1], occupants[0]]


class RecordingDrafter:
    """Always proposes the same draft, and records verdicts."""

    def __init__(self, draft: list[int]) -> None:
        self.draft = draft
        self.verdicts: list[Verdict] = []

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [Draft.chain(self.draft) for _ in views]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def forget(self, id: str) -> None:
        pass


def test_the_drafter_learns_the_verdict_on_its_draft() -> None:
    proposer = LookupProposer(vllm_config())
    proposer.speculator.drafters["suffix"].drafter = drafter = RecordingDrafter([5, 6, 7])
    proposed(proposer, [[1, 2]])
    proposed(proposer, [[1, 2, 5, 6, 9]], outputs=[[5, 6, 9]])
    proposed(proposer, [[1, 2, 5, 6, 9, 4]], outputs=[[4]])
    assert drafter.verdicts == [Verdict((0, 1), 9), Verdict((), 4)]


def test_errors_cost_draft_tokens_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    proposer = LookupProposer(vllm_config())
    proposer.speculator.drafters["suffix"].drafter = RecordingDrafter([VOCAB])
    with caplog.at_level(logging.ERROR, logger="vllm.forerun"):
        for _ in range(3):
            assert proposed(proposer, [[1, 2], [3, 4]]) == [[], []]
        assert proposer.propose([[1]], np.array([1]), None) == [[]]  # type: ignore[arg-type]
    assert proposer.stats.total(DRAFTER_ERRORS) == 6
    assert len(caplog.records) == 2, "one of the drafter, logged once, and one of the proposer"


def test_settings_that_the_hook_does_not_support_raise() -> None:
    with pytest.raises(ConfigurationError, match="share_outputs"):
        LookupProposer(vllm_config(share_outputs=True))
    with pytest.raises(ConfigurationError, match="cannot load a tokenizer"):
        LookupProposer(vllm_config(corpora=("corpus.fri",)))


@pytest.mark.parametrize(("old", "new"), [("Drafter", LookupProposer), ("Nobody", NullProposer)])
def test_old_class_paths_resolve_with_a_deprecation_warning(old: str, new: type) -> None:
    """vLLM imports the module of `custom_class` and takes the class with getattr."""
    with pytest.warns(DeprecationWarning, match=new.__name__):
        assert getattr(plugin_package, old) is new
    with pytest.raises(AttributeError, match="Unknown"):
        getattr(plugin_package, "Unknown")  # noqa: B009
