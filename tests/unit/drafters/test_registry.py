from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun import SpeculationConfig
from forerun.drafters.corpus_builder import build
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.registry import make_drafter
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
            "no drafter is called 'sufix'; there are auto, ngram, suffix",
        ),
        (SpeculationConfig(drafters=("ngram", "suffix")), "one drafter at a time"),
        (SpeculationConfig(drafters=("ngram",), share_outputs=True), "own text only"),
    ],
)
def test_what_cannot_be_had_is_refused(config: SpeculationConfig, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_drafter(config)
