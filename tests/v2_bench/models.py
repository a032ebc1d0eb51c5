"""Tiny models for the test bench: a target, a draft model, EAGLE-3 heads and a target with an MTP head.

The target's most likely token mostly follows from the current token along short cycles, so that its output
repeats itself as text does and lookup drafts are partly accepted; attention makes the rest depend on the
context. The weights are made from a fixed seed.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCAB, HIDDEN, LAYERS, HEADS, CONTEXT = 300, 64, 4, 2, 256
DRAFT_VOCAB = 200
"""Size of the reduced vocabulary of the EAGLE-3 heads."""
AUX_LAYERS = (1, 2, 3)
"""The layers of the target whose hidden states an EAGLE-3 head reads."""
CYCLE = 7
"""The likely successors of tokens form cycles of this length."""
LAYER_SCALE, SHARPNESS, DRAFT_NOISE = 0.95, 7.0, 0.3
"""Scales of layer weights, of the likely successor's logit, and of the draft model's perturbation.

With these, about two tokens per step come from lookup and about 0.7 of the draft model's tokens are accepted.
"""

TEXT = ["the quick brown fox jumps over the lazy dog and then it rests in the sun"] * 4
SPECIAL = ("<s>", "</s>", "<think>", "</think>")

CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class Models:
    """The folders of the models; `mtp` is a target that contains its MTP head."""

    target: Path
    draft: Path
    eagle3: Path
    eagle3_speculators: Path
    mtp: Path


def make_models(folder: Path) -> Models:
    """Make all models in a folder."""
    models = Models(*(folder / name for name in Models.__slots__))
    write_tokenizer(models.target)
    target = write_target(models.target)
    write_draft(models.draft, target)
    write_eagle3(models.eagle3, target)
    write_eagle3_speculators(models.eagle3_speculators, models)
    write_mtp(models.mtp)
    for each in (models.draft, models.mtp):
        for file in models.target.glob("*token*"):
            shutil.copy(file, each)
    return models


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer with `VOCAB` tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    assert tokenizer.get_vocab_size() == VOCAB
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1])
    fast.save_pretrained(folder)


def cycles(vocab: int, generator: torch.Generator) -> Tensor:
    """The likely successor of each token."""
    order = torch.randperm(vocab, generator=generator)
    successor = torch.empty(vocab, dtype=torch.long)
    for cycle in torch.split(order, CYCLE):
        successor[cycle] = cycle.roll(-1)
    return successor


def llama_weights(vocab: int, layers: int, sharpness: float, seed: int = 0) -> dict[str, Tensor]:
    """Random weights in transformers' names; `sharpness` scales the logit of the likely successor."""
    generator = torch.Generator().manual_seed(seed)
    randn = partial(torch.randn, generator=generator)
    embeddings = randn(vocab, HIDDEN)
    head = 0.35 * randn(vocab, HIDDEN)
    head[cycles(vocab, generator)] += sharpness * embeddings / HIDDEN**0.5
    weights = {
        "model.embed_tokens.weight": embeddings,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(layers):
        weights |= layer_weights(f"model.layers.{layer}.", randn)
    return weights


def layer_weights(prefix: str, randn: Any, inputs: int = HIDDEN) -> dict[str, Tensor]:
    """Weights of one decoder layer."""
    scale = LAYER_SCALE / HIDDEN**0.5
    projections = {f"self_attn.{name}_proj.weight": scale * randn(HIDDEN, inputs) for name in "qkv"}
    return {
        prefix + name: weight
        for name, weight in {
            **projections,
            "self_attn.o_proj.weight": scale * randn(HIDDEN, HIDDEN),
            "mlp.gate_proj.weight": scale * randn(96, HIDDEN),
            "mlp.up_proj.weight": scale * randn(96, HIDDEN),
            "mlp.down_proj.weight": scale * randn(HIDDEN, 96),
            "input_layernorm.weight": torch.ones(HIDDEN),
            "post_attention_layernorm.weight": torch.ones(HIDDEN),
        }.items()
    }


def save(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write a checkpoint in transformers' format."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"dtype": "float32", **config}))


def write_target(
    folder: Path, vocab: int = VOCAB, sharpness: float = SHARPNESS, logit_scale: float = 1.0
) -> dict[str, Tensor]:
    """A Llama model."""
    weights = llama_weights(vocab, LAYERS, sharpness)
    weights["lm_head.weight"] *= logit_scale
    config = {**CONFIG, "vocab_size": vocab, "num_hidden_layers": LAYERS}
    save(folder, weights, {**config, "model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    return weights


def write_draft(folder: Path, target: dict[str, Tensor], noise: float = DRAFT_NOISE) -> None:
    """A copy of the target with perturbed weights, with its own vocabulary size and number of layers."""
    generator = torch.Generator().manual_seed(1)
    perturbed = {
        name: weight + noise * weight.std() * torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1
        else weight
        for name, weight in target.items()
    }
    config = {**CONFIG, "vocab_size": len(target["lm_head.weight"]), "num_hidden_layers": LAYERS}
    save(folder, perturbed, {**config, "model_type": "llama", "architectures": ["LlamaForCausalLM"]})


def write_eagle3(folder: Path, target: dict[str, Tensor], draft_vocab: int = DRAFT_VOCAB) -> None:
    """A random EAGLE-3 head with a reduced vocabulary.

    Its attention copies the embedding of the input token to the output, and its output head is that of the
    target, so that some draft tokens are accepted.
    """
    generator = torch.Generator().manual_seed(2)
    randn = partial(torch.randn, generator=generator)
    vocab = len(target["lm_head.weight"])
    kept = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
    is_kept = torch.zeros(vocab, dtype=torch.bool)
    is_kept[kept] = True
    copied = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
    weights = {
        **layer_weights("midlayer.", randn, inputs=2 * HIDDEN),
        **{f"midlayer.self_attn.{name}_proj.weight": 2 * copied for name in "qkv"},
        "midlayer.self_attn.o_proj.weight": 2 * torch.eye(HIDDEN),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "fc.weight": 0.05 * randn(HIDDEN, len(AUX_LAYERS) * HIDDEN),
        "lm_head.weight": target["lm_head.weight"][kept],
        "d2t": kept - torch.arange(draft_vocab),
        "t2d": is_kept,
    }
    aux = {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS)}
    sizes = {"vocab_size": vocab, "draft_vocab_size": draft_vocab}
    config = {**CONFIG, **sizes, "num_hidden_layers": 1, "model_type": "llama"}
    save(folder, weights, {**config, "eagle_config": aux, **aux, "architectures": ["LlamaForCausalLMEagle3"]})


def write_eagle3_speculators(folder: Path, models: Models) -> None:
    """The EAGLE-3 head in the format of the `speculators` library."""
    from transformers import LlamaConfig

    weights = load_file(models.eagle3 / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items()}
    layer = LlamaConfig(**CONFIG, num_hidden_layers=1).to_dict()
    method = {"proposal_type": "greedy", "speculative_tokens": 3}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS),
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": str(models.target), "architectures": ["LlamaForCausalLM"]},
        },
    }
    save(folder, renamed, config)


def write_mtp(folder: Path) -> None:
    """A MiMo model (Qwen2 layers) with one MTP layer.

    The MTP layer's projection keeps the embedding of its input token, so that some draft tokens are accepted.
    """
    weights = llama_weights(VOCAB, LAYERS, SHARPNESS, seed=3)
    generator = torch.Generator().manual_seed(4)
    randn = partial(torch.randn, generator=generator)
    mtp = "model.mtp_layers.0."
    projection = torch.cat([0.1 * randn(HIDDEN, HIDDEN), torch.eye(HIDDEN)], dim=1)
    weights |= layer_weights(mtp, randn) | {f"{mtp}input_proj.weight": projection}
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"{mtp}{name}.weight"] = torch.ones(HIDDEN)
    for prefix in (*(f"model.layers.{layer}." for layer in range(LAYERS)), mtp):
        weights |= {f"{prefix}self_attn.{name}_proj.bias": torch.zeros(HIDDEN) for name in "qkv"}
    config = {**CONFIG, "num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1, "model_type": "qwen2"}
    save(folder, weights, {**config, "architectures": ["MiMoForCausalLM"]})
