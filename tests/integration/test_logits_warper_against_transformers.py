"""The warped distribution equals that of the logits processors of transformers."""

from __future__ import annotations

import pytest
import torch

from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_processors import RowContext, TokenHistory
from forerun.core.logits_warper import probabilities
from forerun.types import SamplingParams

transformers = pytest.importorskip("transformers", reason="needs the extra `local`")

LOGITS = torch.randn(8, 200, generator=torch.Generator().manual_seed(0)) * 3


def compare_with(processor: object, **settings: object) -> None:
    context = torch.randint(0, 200, (8, 12), generator=torch.Generator().manual_seed(1))
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    contexts = [RowContext(TokenHistory(output=row)) for row in context.tolist()]
    ours = probabilities(LOGITS, BatchSampling.of([params] * 8), contexts)
    theirs = torch.softmax(processor(context, LOGITS.clone()), dim=-1)  # type: ignore[operator]
    assert ((ours > 0) == (theirs > 0)).all()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "setting"),
    [
        ("TemperatureLogitsWarper", 0.7, {"temperature": 0.7}),
        ("TopKLogitsWarper", 17, {"top_k": 17}),
        ("TopPLogitsWarper", 0.8, {"top_p": 0.8}),
        ("MinPLogitsWarper", 0.05, {"min_p": 0.05}),
        ("RepetitionPenaltyLogitsProcessor", 1.3, {"repetition_penalty": 1.3}),
    ],
)
def test_each_setting_matches_transformers(name: str, value: float, setting: dict[str, object]) -> None:
    compare_with(getattr(transformers, name)(value), **setting)


def test_bad_words_match_transformers() -> None:
    processor = transformers.NoBadWordsLogitsProcessor([[5], [7, 9]], eos_token_id=199)
    compare_with(processor, bad_words=((5,), (7, 9)))
