"""Running a transformers model; the only room that imports transformers.

- `loading`: models and tokenizers by directory or name
- `cache`: keys and values of many texts, a slot each; `attention`: rows of many texts in one pass, each
  looking at its own; `runner`: read rows, keep a path, drop the rest
- `text`: token ids to text and back, a few tokens at a time
- `reference`: a plain model for audits
"""

from forerun.core.tensors import HAS_TORCH
from forerun.errors import MissingExtra

if not HAS_TORCH:
    raise MissingExtra("torch", "local")
try:
    import transformers as _  # noqa: F401
except ImportError as error:  # pragma: no cover: the tests have it
    raise MissingExtra("transformers", "local") from error
