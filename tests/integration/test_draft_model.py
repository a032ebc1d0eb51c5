"""The draft model: proposed tokens, cache contents and slots."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forerun import LLM, SpeculationConfig
from forerun.core.batch_sampling import BatchSampling
from forerun.core.exponential_race import clocks, exponential_race_rows
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.logits_warper import probabilities
from forerun.core.noise import signed
from forerun.core.verify import VerifyRequest, verify
from forerun.drafters.draft_model import PREFILL_CHUNK, ModelDrafter
from forerun.errors import ConfigurationError, VocabularyMismatch
from forerun.models.runner import Runner
from forerun.models.tokenization import check_same_vocabulary
from forerun.types import Draft, RequestView, SamplingParams, Verdict
from integration.local_models import make_draft_model

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_k=8)
SEEDED = SamplingParams(temperature=0.8, seed=2**64 - 3)
VOCAB = 16


@pytest.fixture
def model(tiny_llama: Any) -> Any:
    return copy.deepcopy(tiny_llama)


@pytest.fixture
def drafter(model: Any) -> ModelDrafter:
    return make(model)


def make(model: Any, *, branches: int = 1, slots: int = 4, length: int = 128) -> ModelDrafter:
    runner = Runner(model, num_slots=slots, max_length=length)
    return ModelDrafter(runner, VOCAB, branches=branches, rng=np.random.default_rng(0))


@torch.inference_mode()
def logits(model: Any, tokens: list[int]) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return found


def greedy_output(model: Any, tokens: list[int], num: int) -> list[int]:
    output: list[int] = []
    for _ in range(num):
        output.append(int(logits(model, tokens + output).argmax()))
    return output


def test_greedy_draft_tokens_equal_the_draft_models_greedy_output(model: Any, drafter: ModelDrafter) -> None:
    texts = [[1, 2, 3], [5], [7, 8, 9, 10, 11]]
    views = [RequestView(str(i), text, sampling=GREEDY) for i, text in enumerate(texts)]
    drafts = drafter.propose(views, [4, 2, 3])
    assert [draft.tokens.tolist() for draft in drafts] == [
        greedy_output(model, text, num) for text, num in zip(texts, (4, 2, 3), strict=True)
    ]
    assert not any(draft.sampled.any() for draft in drafts)


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
def test_it_continues_after_accepted_and_rejected_draft_tokens(
    model: Any, drafter: ModelDrafter, num_accepted: int
) -> None:
    text = [1, 2, 3]
    view = RequestView("r", text, sampling=GREEDY)
    (draft,) = drafter.propose([view], [3])
    text += [*draft.tokens[:num_accepted].tolist(), 13]
    passes = drafter.runner.num_forward_passes
    (again,) = drafter.propose([view], [3])
    assert again.tokens.tolist() == greedy_output(model, text, 3)
    assert drafter.runner.num_forward_passes - passes == 3, (
        "one forward pass to catch up, and one per draft token but the last"
    )


def test_it_catches_up_after_steps_without_drafting(model: Any, drafter: ModelDrafter) -> None:
    text = [1, 2, 3]
    view = RequestView("r", text, sampling=GREEDY)
    drafter.propose([view], [3])
    for token in (4, 9, 9, 2):
        text.append(token)
        assert len(drafter.propose([view], [0])[0]) == 0
    (draft,) = drafter.propose([view], [2])
    assert draft.tokens.tolist() == greedy_output(model, text, 2)


def test_a_long_prompt_is_prefilled_in_chunks(tiny_llama: Any) -> None:
    from transformers import LlamaForCausalLM

    config = copy.deepcopy(tiny_llama.config)
    config.max_position_embeddings = 2 * PREFILL_CHUNK + 100
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).eval()
    drafter = make(model, length=2 * PREFILL_CHUNK + 100)
    text = [n * n % 16 for n in range(2 * PREFILL_CHUNK + 5)]
    (draft,) = drafter.propose([RequestView("r", text, sampling=GREEDY)], [2])
    assert draft.tokens.tolist() == greedy_output(model, text, 2)


def test_sampled_draft_tokens_carry_the_q_they_were_sampled_from(model: Any, drafter: ModelDrafter) -> None:
    text = [1, 2, 3]
    (draft,) = drafter.propose([RequestView("r", text, sampling=SAMPLED)], [5])
    assert len(draft) == 5
    assert draft.sampled.all()
    draft.check(VOCAB)
    for node, token in enumerate(draft.tokens.tolist()):
        before = text + draft.tokens[:node].tolist()
        expected = probabilities(logits(model, before)[None], BatchSampling.of([SAMPLED]))[0]
        assert (draft.proposals_of_nodes()[node].probs - expected).abs().max() < 1e-5
        assert draft.proposals_of_nodes()[node].probs[token] > 0


def test_sampled_draft_tokens_follow_q(drafter: ModelDrafter) -> None:
    """4,000 samples of the first draft token, by chi-square; false alarm rate 1e-6."""
    from scipy.stats import chisquare

    counts = np.zeros(VOCAB)
    for number in range(1000):
        views = [RequestView(f"{number}-{i}", [1, 2, 3], sampling=SAMPLED) for i in range(4)]
        for view, draft in zip(views, drafter.propose(views, [1] * 4), strict=True):
            counts[draft.tokens[0]] += 1
            q = draft.proposals_of_nodes()[0].probs.double().numpy()
            drafter.forget(view.id)
    possible = q > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], 4000 * q[possible] / q[possible].sum()).pvalue > 1e-6


def test_seeded_draft_tokens_equal_the_seeded_output_of_the_same_model(
    model: Any, drafter: ModelDrafter
) -> None:

    text = [1, 2, 3]
    (draft,) = drafter.propose([RequestView("r", text, sampling=SEEDED)], [6])
    assert not draft.sampled.any()
    for node, token in enumerate(draft.tokens.tolist()):
        before = text + draft.tokens[:node].tolist()
        p = probabilities(logits(model, before)[None], BatchSampling.of([SEEDED]))
        assert exponential_race_rows(p, np.array([signed(SEEDED.seed or 0)]), np.array([len(before)])) == [
            token
        ]


def test_a_tree_holds_the_most_likely_nodes_of_its_levels(model: Any) -> None:
    text = [1, 2, 3]
    drafter = make(model, branches=3)
    (draft,) = drafter.propose([RequestView("r", text, sampling=GREEDY)], [9])
    draft.check(VOCAB)
    assert len(draft) == 9
    assert (draft.parents != np.arange(-1, 8)).any(), "a chain"
    assert draft.survival is not None
    survival = draft.survival
    assert (np.diff(survival) <= 0).all()
    for node in range(len(draft)):
        path = draft.path(node)
        probability = 1.0
        for depth, each in enumerate(path):
            before = text + [int(draft.tokens[i]) for i in path[:depth]]
            probability *= float(torch.softmax(logits(model, before), -1)[int(draft.tokens[each])])
        assert survival[node] == pytest.approx(probability, rel=1e-3)
    best = greedy_output(model, text, 1)[0]
    assert draft.tokens[0] == best


PENALISED = SamplingParams(
    temperature=0.0,
    repetition_penalty=1.3,
    presence_penalty=1.5,
    frequency_penalty=0.7,
    bad_words=((4,),),
    logit_bias={5: 1.0},
)


def test_a_tree_applies_penalties_and_counts_the_draft_tokens_before_a_node(model: Any) -> None:
    text, num_prompt = [1, 2, 3, 7, 7], 3
    (draft,) = make(model, branches=3).propose(
        [RequestView("r", text, num_prompt=num_prompt, sampling=PENALISED)], [9]
    )
    assert draft.survival is not None
    assert 4 not in draft.tokens
    assert max(len(draft.path(node)) for node in range(len(draft))) >= 3
    for node in range(len(draft)):
        path = [int(draft.tokens[each]) for each in draft.path(node)]
        survival = 1.0
        for depth, token in enumerate(path):
            row = logits(model, text + path[:depth])[None].clone()
            context = RowContext(TokenHistory(text[:num_prompt], text[num_prompt:]), path[:depth])
            apply_logits_processors(row, BatchSampling.of([PENALISED]), [context])
            survival *= float(torch.softmax(row, -1)[0, token])
        assert draft.survival[node] == pytest.approx(survival, rel=1e-3)


SEEDED_SETTINGS = [
    {"top_k": 3},
    {"top_p": 0.6},
    {"min_p": 0.3},
    {"repetition_penalty": 1.3, "presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"logit_bias": {5: 2.0}, "bad_words": ((4,), (7, 7))},
    {"allowed_token_ids": (2, 3, 5, 7, 11)},
]


def num_accepted_of(model: Any, sampling: SamplingParams, drafted_with: SamplingParams, length: int) -> int:
    """Accepted draft tokens of a coupled chain, where the draft model is the target."""
    text, num_prompt = [1, 2, 3, 7, 7], 3
    drafter = make(copy.deepcopy(model), slots=1)
    (draft,) = drafter.propose(
        [RequestView("r", text, num_prompt=num_prompt, sampling=drafted_with)], [length]
    )
    rows = torch.stack([logits(model, text + draft.tokens[:i].tolist()) for i in range(length + 1)])
    history = TokenHistory(text[:num_prompt], text[num_prompt:])
    request = VerifyRequest(draft, sampling, sampling.seed or 0, len(text), history)
    return len(verify([request], rows)[0].accepted)


@pytest.mark.parametrize("setting", SEEDED_SETTINGS, ids=lambda setting: next(iter(setting)))
def test_coupled_drafts_of_the_target_itself_are_accepted_under_every_setting(
    model: Any, setting: dict[str, Any]
) -> None:
    """q equals p only if every setting is applied to the draft's logits; a q with the temperature alone, the
    sabotaged twin, loses draft tokens.
    """
    length, requests = 6, [SamplingParams(temperature=1.2, seed=seed, **setting) for seed in range(8)]
    assert [num_accepted_of(model, each, each, length) for each in requests] == [length] * 8
    temperature_only = [SamplingParams(temperature=1.2, seed=each.seed) for each in requests]
    accepted = [
        num_accepted_of(model, each, other, length)
        for each, other in zip(requests, temperature_only, strict=True)
    ]
    assert sum(accepted) < 8 * length


def test_the_tree_of_a_seeded_request_has_the_chain_and_the_runners_up_of_its_races(model: Any) -> None:
    view = RequestView("r", [1, 2, 3], sampling=SEEDED)
    (chain,) = make(copy.deepcopy(model)).propose([view], [3])
    (tree,) = make(model, branches=3).propose([view], [9])
    assert not tree.sampled.any()
    assert not tree.q
    node = -1
    for token in chain.tokens.tolist():  # the winners, first among their siblings
        (node,) = (
            child
            for child in range(len(tree))
            if tree.parents[child] == node and int(tree.tokens[child]) == token
        )
    before = [1, 2, 3]
    q = probabilities(logits(model, before)[None], BatchSampling.of([SEEDED]), [RowContext()])[0].numpy()
    times = np.array(clocks(VOCAB, signed(SEEDED.seed or 0), len(before))) / np.maximum(q, 1e-30)
    at_root = [int(tree.tokens[child]) for child in range(len(tree)) if tree.parents[child] == -1]
    assert sorted(at_root) == sorted(np.argsort(times)[: len(at_root)].tolist())


def test_trees_of_seeded_requests_have_more_accepted_tokens_than_chains(tiny_llama: Any) -> None:
    accepted = {1: 0, 3: 0}
    sampling = [SamplingParams(temperature=1.0, seed=seed) for seed in range(24)]
    for branches in accepted:
        for each in sampling:
            drafter = make(make_draft_model(tiny_llama, 0.1), branches=branches)
            (draft,) = drafter.propose([RequestView("r", [1, 2, 3], sampling=each)], [4 * branches])
            texts = [[1, 2, 3, *draft.tokens[draft.path(node)].tolist()] for node in range(len(draft))]
            rows = torch.stack([logits(tiny_llama, text) for text in ([1, 2, 3], *texts)])
            request = VerifyRequest(draft, each, each.seed or 0, 3, TokenHistory([1, 2, 3], []))
            accepted[branches] += len(verify([request], rows)[0].accepted)
    assert accepted[3] > 1.15 * accepted[1], accepted


def test_several_draft_models_by_name_draft_together(tiny_llama: Any, tmp_path: Path) -> None:
    for name, noise in (("one", 0.02), ("other", 0.08)):
        make_draft_model(tiny_llama, noise).save_pretrained(tmp_path / name)
    settings: dict[str, Any] = {"max_tokens": 24, "ignore_end": True, "max_draft": 6}
    plain = LLM(copy.deepcopy(tiny_llama), "none", max_length=64)
    llm = LLM(
        copy.deepcopy(tiny_llama),
        f"model:{tmp_path / 'one'},model:{tmp_path / 'other'}",
        max_length=64,
        config=SpeculationConfig(adaptive=False),
    )
    assert llm.engine.speculator.default_drafters == ("model", "model 2")
    each: dict[str, Any]
    for each in ({}, {"temperature": 1.0, "seed": 3}):
        (found,) = llm.generate([[1, 2, 3]], **(settings | each))
        (expected,) = plain.generate([[1, 2, 3]], **(settings | each))
        assert found.token_ids == expected.token_ids
        assert set(found.stats.by_drafter) >= {"model", "model 2"}
    (sampled,) = llm.generate([[1, 2, 3]], **settings, temperature=1.0)
    counts = [stats.num_draft_tokens for stats in sampled.stats.by_drafter.values()]
    assert len(counts) == 2
    assert max(counts) <= 2 * min(counts), "both have a share of the tree"


def test_a_tree_is_rolled_back_to_the_committed_tokens(model: Any) -> None:
    text = [1, 2, 3]
    drafter = make(model, branches=3)
    view = RequestView("r", text, sampling=GREEDY)
    (draft,) = drafter.propose([view], [9])
    deep = max(range(len(draft)), key=lambda node: (len(draft.path(node)), node))
    text += [*(int(draft.tokens[node]) for node in draft.path(deep)), 11]
    (again,) = drafter.propose([view], [9])
    (fresh,) = make(copy.deepcopy(model), branches=3).propose([RequestView("n", text, sampling=GREEDY)], [9])
    assert again.tokens.tolist() == fresh.tokens.tolist()
    assert again.parents.tolist() == fresh.parents.tolist()


def test_slots_are_freed_and_without_a_slot_the_draft_is_empty(model: Any) -> None:
    drafter = make(model, slots=2)
    views = [RequestView(str(i), [1, 2, i], sampling=GREEDY) for i in range(3)]
    assert [len(draft) for draft in drafter.propose(views, [2, 2, 2])] == [2, 2, 0]
    drafter.forget("0")
    drafter.forget("unknown")
    assert [len(draft) for draft in drafter.propose(views[1:], [2, 2])] == [2, 2]
    drafter.forget("1")
    drafter.forget("2")
    assert drafter.runner.cache.num_free == 2
    drafter.learn("2", Draft.chain([1]), Verdict((), 3))


def test_a_reused_id_with_a_new_text_is_another_request(model: Any, drafter: ModelDrafter) -> None:
    drafter.propose([RequestView("r", [1, 2, 3, 4, 5, 6], sampling=GREEDY)], [2])
    (draft,) = drafter.propose([RequestView("r", [9, 8], sampling=GREEDY)], [2])
    assert draft.tokens.tolist() == greedy_output(model, [9, 8], 2)


def test_drafts_stay_within_the_length_of_the_cache(model: Any) -> None:
    drafter = make(model, length=8)
    views = [RequestView("a", [1] * 6, sampling=GREEDY), RequestView("b", [1] * 8, sampling=GREEDY)]
    assert [len(draft) for draft in drafter.propose(views, [5, 5])] == [2, 0]


@pytest.mark.parametrize("target_vocab", [12, 20])
def test_vocabularies_may_differ_by_padding(model: Any, target_vocab: int) -> None:
    drafter = ModelDrafter(Runner(model, num_slots=1), target_vocab)
    (draft,) = drafter.propose([RequestView("r", [1, 2, 3], sampling=SAMPLED)], [3])
    draft.check(target_vocab)
    for proposal in draft.proposals_of_nodes().values():
        assert proposal.probs.shape == (target_vocab,)
        assert float(proposal.probs.sum()) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ConfigurationError, match="branches is 0"):
        ModelDrafter(drafter.runner, target_vocab, branches=0)


class Table:
    """A tokenizer reduced to its vocabulary."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: depth for depth, token in enumerate(self.tokens)}


def test_vocabularies_are_compared_by_content() -> None:
    check_same_vocabulary(Table("a", "b", "c"), Table("a", "b", "c"))
    with pytest.raises(VocabularyMismatch, match=r"token 1, '.'\)"):
        check_same_vocabulary(Table("a", "b", "c"), Table("a", "c", "b"))
    with pytest.raises(VocabularyMismatch, match="token 2, 'c'"):
        check_same_vocabulary(Table("a", "b", "c"), Table("a", "b"))
