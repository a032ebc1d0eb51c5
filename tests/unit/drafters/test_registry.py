from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun import SpeculationConfig
from forerun.drafters.corpus_builder import build
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.registry import make_drafter, make_drafters
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import ConfigurationError, VocabularyMismatch


def test_nothing_to_set_is_a_suffix_drafter_that_shares_nothing() -> None:
    drafter = make_drafter(SpeculationConfig())
    assert isinstance(drafter, SuffixDrafter)
    assert drafter.store is None
    assert not drafter.corpora
    assert not drafter.chain


def test_what_is_asked_for_is_what_one_gets(tmp_path: Path) -> None:
    assert isinstance(make_drafter(SpeculationConfig(drafters=("ngram",))), NgramDrafter)
    file = tmp_path / "corpus.fri"
    build([np.array([1, 2, 3])], file, vocabulary="words", tokenizer="a tokenizer")
    drafter = make_drafter(SpeculationConfig(share_outputs=True, corpora=(file,)), vocabulary="words")
    assert isinstance(drafter, SuffixDrafter)
    assert drafter.store is not None
    assert len(drafter.corpora) == 1
    with pytest.raises(VocabularyMismatch):
        make_drafter(SpeculationConfig(corpora=(file,)), vocabulary="other words")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            SpeculationConfig(drafters=("sufix",)),
            "no drafter is called 'sufix'; there are auto, grammar, model, ngram, suffix",
        ),
        (SpeculationConfig(drafters=("grammar",)), "grammar guesses only inside an engine"),
        (SpeculationConfig(drafters=("no.such:Thing",)), "cannot be imported: No module named 'no'"),
        (SpeculationConfig(drafters=("collections:Thing",)), "cannot be imported: .*Thing"),
        (SpeculationConfig(drafters=("collections:Counter",)), "made a Counter: it lacks propose"),
        (SpeculationConfig(drafters=("ngram", "suffix")), "one drafter at a time"),
        (SpeculationConfig(drafters=("ngram",), share_outputs=True), "own text only"),
    ],
)
def test_what_cannot_be_had_is_refused(config: SpeculationConfig, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_drafter(config)


def test_everybody_who_is_named_is_made() -> None:
    made = make_drafters(SpeculationConfig(drafters=("auto", "forerun.drafters.ngram:NgramDrafter")))
    assert list(made) == ["suffix", "ngram", "forerun.drafters.ngram:NgramDrafter"]
    shared = make_drafters(SpeculationConfig(share_outputs=True))
    assert isinstance(shared["suffix"], SuffixDrafter)
    assert shared["suffix"].store is not None


def test_names_come_in_order_and_once() -> None:
    assert SpeculationConfig().names == ("suffix", "ngram", "grammar")
    assert SpeculationConfig(drafters=("ngram", "auto"), draft_model="small").names == (
        "ngram",
        "suffix",
        "grammar",
        "model",
    )
    with pytest.raises(ConfigurationError, match="needs a draft_model"):
        SpeculationConfig(drafters=("model",))
