from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from forerun.bench.baseline_drafters import VllmNgram
from forerun.bench.replay import Reliability, Replay, geometric_mean, linear_cost
from forerun.bench.transcripts import Transcript, read_transcripts
from forerun.drafters.suffix import SuffixDrafter
from forerun.drafters.tree_merge import verdict_for
from forerun.errors import UnreadableTranscripts
from forerun.types import Draft, Drafter, RequestView, Verdict

SAMPLE = Path(__file__).parents[1] / "data" / "transcripts.jsonl"


class Oracle:
    """Drafts the next `num_right` tokens of a text, then a wrong one."""

    def __init__(self, text: list[int], num_right: int) -> None:
        self.text, self.num_right = text, num_right
        self.verdicts: list[Verdict] = []
        self.forgotten: list[str] = []

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        known = len(views[0].tokens)
        tokens = [*self.text[known : known + self.num_right], 10**6]
        survival = 0.7 ** np.arange(1, len(tokens) + 1, dtype=np.float32)
        return [Draft.chain(tokens, source="oracle", survival=survival)]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def forget(self, id: str) -> None:
        self.forgotten.append(id)


def transcript(prompt: list[int], output: list[int], category: str = "text") -> Transcript:
    return Transcript(category, np.array(prompt), np.array(output))


def test_steps_and_draft_tokens_are_counted() -> None:
    oracle = Oracle(list(range(30)), num_right=3)
    totals = Replay(oracle, nodes=8).run([transcript(list(range(10)), list(range(10, 30)))])["text"]
    # 19 tokens after the first: four steps of four tokens, then three, of which the last is a bonus token.
    assert (totals.num_tokens, totals.num_steps) == (19, 5)
    assert totals.tokens_per_step == 19 / 5
    assert totals.num_draft_tokens == 4 + 4 + 4 + 4 + 4
    assert totals.acceptance_by_depth == [1.0, 1.0, 4 / 5, 0.0]
    assert totals.tokens_per_cost(0.1) == 19 / (5 + 2.0)
    assert [token for verdict in oracle.verdicts for token in [verdict.next_token]] == [14, 18, 22, 26, 29]
    assert oracle.forgotten == ["replay-0"]


def test_short_outputs_are_skipped_and_categories_are_separate() -> None:
    recorded = [
        transcript([1], [2] * 7),
        transcript([1], [2] * 8, "a"),
        transcript([1], [2] * 9, "b"),
        transcript([1], [2] * 10, "b"),
    ]
    stats = Replay(VllmNgram(), nodes=4).run(recorded)
    assert {name: (t.num_outputs, t.num_tokens) for name, t in stats.items()} == {"a": (1, 7), "b": (2, 17)}


def test_a_recording_is_matched_along_a_tree() -> None:
    draft = Draft(np.array([5, 6, 7, 8]), np.array([-1, -1, 1, 2]), np.zeros(4, dtype=np.bool_))
    assert verdict_for(draft, np.array([6, 7, 9, 1])) == Verdict((1, 2), 9)
    assert verdict_for(draft, np.array([4, 7])) == Verdict((), 4)
    assert verdict_for(draft, np.array([6, 7])) == Verdict((1,), 7), "the last token is never a draft token"


def test_with_a_price_only_drafts_that_pay_are_verified() -> None:
    recorded = [transcript(list(range(10)), list(range(10, 30))) for _ in range(20)]
    expensive = Replay(Oracle(list(range(30)), num_right=0), nodes=8, cost=linear_cost(0.5))
    totals = expensive.run(recorded)["text"]
    assert totals.num_draft_tokens < 0.1 * totals.num_steps, "they are always rejected"
    cheap = Replay(Oracle(list(range(30)), num_right=3), nodes=8, cost=linear_cost(0.01))
    assert cheap.run(recorded)["text"].tokens_per_step > 3


def test_estimated_survival_is_compared_with_acceptance() -> None:
    reliability = Reliability()
    assert (reliability.bins, reliability.calibration_error) == ([], 0.0)
    reliability.add(np.linspace(0.0, 0.98, 50), np.zeros(50))
    reliability.add(np.linspace(0.02, 1.0, 50), np.ones(50))
    assert len(reliability.bins) == 10
    assert reliability.calibration_error == pytest.approx(0.25, abs=0.02)
    run = Replay(Oracle(list(range(30)), num_right=0), nodes=8)
    run.run([transcript(list(range(10)), list(range(10, 30))) for _ in range(50)])
    before = run.reliability.calibration_error
    run.run([transcript(list(range(10)), list(range(10, 30))) for _ in range(50)])
    assert run.reliability.calibration_error < before, "the estimates have been fitted"


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


@pytest.mark.parametrize("drafter", [VllmNgram(), SuffixDrafter()])
def test_the_sample_is_replayed_whole(drafter: Drafter) -> None:
    recorded = read_transcripts(SAMPLE)
    stats = Replay(drafter, nodes=16).run(recorded)
    assert sum(totals.num_tokens for totals in stats.values()) == sum(len(t.output) - 1 for t in recorded)
    assert all(totals.tokens_per_step >= 1 for totals in stats.values())
    assert stats["summarization"].tokens_per_step > 3


def test_halves_of_a_file_are_its_odd_and_even_lines() -> None:
    everything, odd, even = (read_transcripts(SAMPLE, lines) for lines in ("all", "odd", "even"))
    assert len(odd) == len(even) == 4
    assert [t.prompt.tolist() for t in odd] == [t.prompt.tolist() for t in everything[::2]]
    assert [t.prompt.tolist() for t in even] == [t.prompt.tolist() for t in everything[1::2]]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        json.dumps({"cat": "a", "prompt": [1]}),
        json.dumps([1, 2]),
        "\x00" * 10,
        json.dumps({"cat": "a", "prompt": [1], "out": [1.5]}),
        json.dumps({"cat": "a", "prompt": [1], "out": [[1, 2]]}),
        json.dumps({"cat": "a", "prompt": [1], "out": [-1]}),
        json.dumps({"cat": "a", "prompt": [1], "out": [2**70]}),
    ],
    ids=["empty", "prose", "half", "list", "zeros", "fractions", "nested", "negative", "huge"],
)
def test_a_file_that_is_not_a_transcript_is_an_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "transcripts.jsonl"
    file.write_text(content)
    with pytest.raises(UnreadableTranscripts):
        read_transcripts(file)
    with pytest.raises(UnreadableTranscripts, match="cannot read"):
        read_transcripts(tmp_path / "nowhere.jsonl")
