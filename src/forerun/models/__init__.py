"""Running transformers models; the only package that imports transformers.

- `loading`: models and tokenizers by directory or name
- `kv_cache`: the slotted KV cache; `attention`: attention over ragged rows of many sequences and trees
- `input_rows`: the rows of a forward pass; `runner`: computes them, commits a path and rolls back the rest
- `probe`: checks at load that a model computes the same logits over a tree
- `tokenization`: prompts to token ids, and token ids to text incrementally
- `reference`: a float32 reference model for audits
- `hf_baseline`: transformers' own decoding, for comparison
"""

from importlib.util import find_spec

from forerun.core.tensors import HAS_TORCH
from forerun.errors import MissingExtra

if not HAS_TORCH:
    raise MissingExtra("torch", "local")
if find_spec("transformers") is None:  # its import, which takes seconds, is left to the modules that use it
    raise MissingExtra("transformers", "local")
