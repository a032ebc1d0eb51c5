"""The n-gram baseline drafter proposes the same draft tokens as vLLM's own proposer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.bench.baseline_drafters import VllmNgram
from forerun.types import RequestView

ngram_proposer = pytest.importorskip("vllm.v1.spec_decode.ngram_proposer", reason="needs the extra `vllm`")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 10))
def test_the_baseline_drafter_equals_vllms_ngram_proposer(text: list[int], num: int) -> None:
    theirs = ngram_proposer._find_longest_matched_ngram_and_propose_tokens(
        np.array(text, dtype=np.int32), min_ngram=1, max_ngram=4, max_model_len=10_000, k=num
    )
    (ours,) = VllmNgram().propose([RequestView("r", text)], [num])
    assert ours.tokens.tolist() == theirs.tolist()
