"""The requests of a tuning run: the user's prompts, and the speculation settings to send them with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

import numpy as np

from forerun.bench.suites import Question
from forerun.tune.predict import Choice
from forerun.types import SamplingParams


@dataclass(frozen=True, slots=True)
class DecodingMode:
    """Speculation settings of requests. Requests of one salt may share outputs; with `isolated` each request
    has its own salt.
    """

    request_options: Mapping[str, Any]
    salt: str
    isolated: bool = False

    def request_fields(self, number: int) -> dict[str, Any]:
        """Additional fields of the body of request `number`."""
        salt = f"{self.salt} {number}" if self.isolated else self.salt
        options = {"vllm_xargs": dict(self.request_options)} if self.request_options else {}
        return {"cache_salt": salt} | options


BASELINE_MODE: Final = DecodingMode({"forerun_max_draft": 0, "forerun_adaptive": 0}, "baseline")
"""Non-speculative decoding, from which the controller does not learn. It has its own salt, so that no drafter
finds the output of the very request it drafts for.
"""


def mode_of(choice: Choice, **options: int) -> DecodingMode:
    """The mode that decodes by a choice on a server with more drafters, or with shared outputs.

    The server of a draft model uses that model without a request option.
    """
    drafter = {} if choice.config.draft_model else {"forerun_drafter": choice.config.names[0]}
    salt = f"{choice.name} {options}"
    return DecodingMode(drafter | options, salt, isolated=not choice.config.share_outputs)


@dataclass(frozen=True, slots=True)
class TuningPrompts:
    """The user's prompts with their output limit and temperature."""

    questions: Sequence[Question]
    num_tokens: int
    temperature: float = 0.0

    def spread_indices(self, num: int) -> list[int]:
        """At most `num` indices, spread evenly over the questions."""
        return [int(at) for at in np.unique(np.linspace(0, len(self.questions) - 1, num).round())]

    def sample(self, num: int) -> TuningPrompts:
        """At most `num` questions, spread evenly."""
        return self.select(self.spread_indices(num))

    def select(self, indices: Sequence[int]) -> TuningPrompts:
        """The questions at these indices."""
        return replace(self, questions=[self.questions[index] for index in indices])

    def sampling(self, question: Question) -> SamplingParams:
        """Sampling parameters of a question; its seed depends on its text only."""
        seed = crc32(question.text.encode()) if self.temperature else None
        return SamplingParams(temperature=self.temperature, seed=seed)
