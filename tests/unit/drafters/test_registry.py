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
from forerun.types import RequestView


def test_the_default_is_a_suffix_drafter_without_sharing() -> None:
    drafter = make_drafter(SpeculationConfig())
    assert isinstance(drafter, SuffixDrafter)
    assert drafter.store is None
    assert not drafter.corpora
    assert not drafter.chain


def test_the_configured_drafter_is_made(tmp_path: Path) -> None:
    assert isinstance(make_drafter(SpeculationConfig(drafters=("ngram",))), NgramDrafter)
    file = tmp_path / "corpus.fri"
    build([np.array([1, 2, 3])], file, vocabulary="fingerprint", tokenizer="a tokenizer")
    config = SpeculationConfig(drafters=("suffix",), share_outputs=True, corpora=(file,))
    drafter = make_drafters(config, vocabulary="fingerprint")["suffix"]
    assert isinstance(drafter, SuffixDrafter)
    assert drafter.store is not None
    assert len(drafter.corpora) == 1
    with pytest.raises(VocabularyMismatch):
        make_drafters(config, vocabulary="other fingerprint")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            SpeculationConfig(drafters=("sufix",)),
            "'sufix'.*auto, grammar, model, ngram, prediction, suffix",
        ),
        (SpeculationConfig(drafters=("grammar",)), "grammar.*engine"),
        (SpeculationConfig(drafters=("no.such:Thing",)), "cannot be imported: No module named 'no'"),
        (SpeculationConfig(drafters=("collections:Thing",)), "cannot be imported: .*Thing"),
        (SpeculationConfig(drafters=("collections:Counter",)), "Counter.*propose"),
        (SpeculationConfig(drafters=("ngram", "suffix")), "one drafter.*ngram, suffix"),
        (SpeculationConfig(drafters=("ngram",), share_outputs=True), "ngram.*share_outputs"),
    ],
)
def test_invalid_configurations_are_rejected(config: SpeculationConfig, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_drafter(config)


def test_every_named_drafter_is_made() -> None:
    made = make_drafters(SpeculationConfig(drafters=("auto", "forerun.drafters.ngram:NgramDrafter")))
    assert list(made) == ["suffix", "ngram", "prediction", "forerun.drafters.ngram:NgramDrafter"]
    shared = make_drafters(SpeculationConfig(share_outputs=True))
    assert isinstance(shared["suffix"], SuffixDrafter)
    assert shared["suffix"].store is not None


@pytest.mark.parametrize(("sampled", "vocab_size"), [(True, 8), (True, None), (False, 8)])
def test_ngram_samples_if_configured_and_if_the_engine_verifies_q(
    sampled: bool, vocab_size: int | None
) -> None:
    config = SpeculationConfig(drafters=("ngram",), sampled=sampled)
    drafter = make_drafters(config, vocab_size=vocab_size)["ngram"]
    (draft,) = drafter.propose([RequestView("r", [1, 2, 1])], [1])
    assert draft.sampled.tolist() == [sampled and vocab_size is not None]


def test_a_request_that_names_no_drafter_uses_all_that_are_named_in_the_configuration() -> None:
    assert SpeculationConfig().default_names == ("suffix", "grammar"), "auto keeps ngram for requests"
    assert SpeculationConfig(drafters=("suffix", "ngram")).default_names == ("suffix", "ngram")
    both = SpeculationConfig(drafters=("auto", "ngram"), draft_model="small")
    assert both.default_names == ("suffix", "ngram", "grammar", "model")


def test_names_are_ordered_and_unique() -> None:
    assert SpeculationConfig().names == ("suffix", "ngram", "grammar", "prediction")
    assert SpeculationConfig(drafters=("ngram", "auto"), draft_model="small").names == (
        "ngram",
        "suffix",
        "grammar",
        "prediction",
        "model",
    )
    with pytest.raises(ConfigurationError, match="draft_model"):
        SpeculationConfig(drafters=("model",))
