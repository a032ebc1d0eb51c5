from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forerun.bench.baseline_drafters import VllmNgram
from forerun.bench.recorded_logits import RecordedLogits
from forerun.bench.replay import Reliability, Replay, geometric_mean, linear_cost
from forerun.bench.transcripts import Transcript, read_transcripts
from forerun.drafters.static_table import StaticTable
from forerun.drafters.suffix import SuffixDrafter
from forerun.drafters.tree_merge import verdict_for
from forerun.errors import UnreadableTranscripts
from forerun.types import Draft, Drafter, RequestView, TopTokens, Verdict

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


def test_a_suspension_ends_in_the_next_text_as_in_engines() -> None:
    class WrongAtFirst(Oracle):
        def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
            self.num_right = 0 if views[0].id == "replay-0" else 7
            return super().propose(views, budgets)

    text = list(range(200))
    recorded = [transcript(text[:10], text[10:], name) for name in ("wrong", "right")]
    replay = Replay(WrongAtFirst(text, 0), nodes=8, cost=linear_cost(0.1))
    stats = replay.run(recorded)
    wrong, right = stats["wrong"], stats["right"]
    assert wrong.num_draft_tokens < 0.6 * wrong.num_steps, "drafting was suspended"
    assert right.tokens_per_step > 3.0, "and goes on once lookups match"


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


def recording(num_rows: int) -> RecordedLogits:
    tokens = np.tile(np.arange(10, dtype=np.int32), (num_rows, 1))
    probs = np.full((num_rows, 10), 0.1, dtype=np.float32)
    static_rows = np.array([3, 5], dtype=np.int32)
    table = StaticTable(32)
    table.add(TopTokens(np.stack([static_rows, static_rows], axis=1), tokens[:2], probs[:2]))
    return RecordedLogits(np.array([0, num_rows]), tokens, probs, static_rows, table)


def test_recorded_logits_are_read_as_written(tmp_path: Path) -> None:
    written = recording(6)
    written.write(tmp_path / "some.logits.npz")
    read = RecordedLogits.read(tmp_path / "some.logits.npz")
    assert (read.tokens == written.tokens).all()
    assert np.allclose(read.probs, written.probs, rtol=1e-3)
    assert (read.static_table.successors == written.static_table.successors).all()
    assert read.static_table.missing.tolist() == [each for each in range(32) if each not in {3, 5}]
    rows = read.top_tokens(0, np.array([9, 8, 7, 6, 5, 4]))
    assert rows.contexts.tolist() == [[-1, 9], [9, 8], [8, 7], [7, 6], [6, 5], [5, 4]]


def test_recorded_logits_of_another_file_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTranscripts, match="6 rows for transcript 1, which has 2 tokens"):
        recording(6).top_tokens(0, np.array([1, 2]))
    with pytest.raises(UnreadableTranscripts, match="0 rows for transcript 2"):
        recording(6).top_tokens(1, np.array([1, 2]))
    (tmp_path / "no.npz").write_bytes(b"nothing")
    with pytest.raises(UnreadableTranscripts, match="cannot read recorded logits"):
        RecordedLogits.read(tmp_path / "no.npz")


class LogitsOracle(Oracle):
    """Records the positions whose logits it is given."""

    def __init__(self, text: list[int], num_right: int) -> None:
        super().__init__(text, num_right)
        self.positions: list[int] = []

    def learn_logits(self, id: str, top_tokens: TopTokens) -> None:
        self.positions += [self.text.index(token) for token in top_tokens.contexts[:, 1].tolist()]


@pytest.mark.parametrize("prompt_logits", [False, True])
def test_a_replay_gives_drafters_the_logits_of_every_output_row_once(prompt_logits: bool) -> None:
    text = list(range(30))
    recorded = RecordedLogits(
        np.array([0, 30]),
        np.zeros((30, 10), dtype=np.int32),
        np.full((30, 10), 0.1, dtype=np.float32),
        np.zeros(0, dtype=np.int32),
        StaticTable(0),
    )
    given = replace(transcript(text[:10], text[10:]), top_tokens=recorded.top_tokens(0, np.array(text)))
    oracle = LogitsOracle(text, num_right=3)
    Replay(oracle, nodes=8, prompt_logits=prompt_logits).run([given])
    assert oracle.positions == [*range(0 if prompt_logits else 9, 29)]
