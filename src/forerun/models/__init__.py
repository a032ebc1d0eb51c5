"""Running transformers models; the only package that imports transformers.

- `loading`: models and tokenizers by directory or name
- `kv_cache`: the slotted KV cache; `attention`: attention over ragged rows of many sequences and trees
- `runner`: forward passes over these rows; commits a path and rolls back the rest
- `tokenization`: prompts to token ids, and token ids to text incrementally
- `reference`: a float32 reference model for audits
- `hf_baseline`: transformers' own decoding, for comparison
"""

from forerun.core.tensors import HAS_TORCH
from forerun.errors import MissingExtra

if not HAS_TORCH:
    raise MissingExtra("torch", "local")
try:
    import transformers as _  # noqa: F401
except ImportError as error:  # pragma: no cover: the tests have it
    raise MissingExtra("transformers", "local") from error
