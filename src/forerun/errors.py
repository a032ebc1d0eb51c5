"""The exception tree. Each message names what was got, what was expected and the remedy.

```text
ForerunError
├── ConfigurationError        an invalid configuration (also a ValueError)
│   └── UnknownKey            an unknown configuration key
├── InvalidSampling           sampling settings out of range (also a ValueError)
├── InvalidRequest            invalid per-request speculation options (also a ValueError)
├── InvalidDraft              a draft that breaks the contract of `Draft` (also a ValueError)
├── InvalidDistribution       NaN, or no probability mass (also a ValueError)
├── InvalidCorpus             a corpus file that is damaged or of another version (also a ValueError)
├── UnreadableTranscripts     a file without valid transcripts (also a ValueError)
├── UnreadablePrompts         a file without valid prompts (also a ValueError)
├── UnreadableRecord          a file without a valid benchmark record (also a ValueError)
├── UnreadableTrace           a file without a valid step trace (also a ValueError)
├── UnreadableModel           a directory without a complete model (also a ValueError)
├── UnsupportedModel          a model that cannot run with identical output (also a ValueError)
├── UnreadableAnswer          a server response without usable tokens (also a ValueError)
├── ServerFailed              a server that does not respond, or fails (also a RuntimeError)
├── RequestRefused            a request that the server rejects (also a ValueError)
├── UnsupportedEngine         an unsupported vLLM version or configuration (also a RuntimeError)
├── VocabularyMismatch        two models or files with different vocabularies (also a ValueError)
├── OutputNotWritable         an output path that cannot be written (also an OSError)
└── MissingExtra              an optional dependency is not installed (also an ImportError)
```
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from forerun.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """End of a message about an unknown name: the nearest known name, or all of them."""
    names = list(known)
    near = get_close_matches(given, names, n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"


class ForerunError(Exception):
    """Base class of all errors that forerun raises deliberately."""


class ConfigurationError(ForerunError, ValueError):
    """An invalid configuration."""


class UnknownKey(ConfigurationError):
    """An unknown configuration key; the message names the nearest known one."""


class InvalidSampling(ForerunError, ValueError):
    """Sampling settings out of range."""


class InvalidRequest(ForerunError, ValueError):
    """Invalid per-request speculation options."""


class InvalidDraft(ForerunError, ValueError):
    """A draft that breaks the contract of `Draft`."""


class InvalidDistribution(ForerunError, ValueError):
    """Probabilities or logits that are not a distribution: NaN, or no mass."""


class InvalidCorpus(ForerunError, ValueError):
    """A corpus file that is truncated, damaged or of another version."""


class UnreadableTranscripts(ForerunError, ValueError):
    """A file without valid transcripts."""


class UnreadablePrompts(ForerunError, ValueError):
    """A file without valid prompts."""


class UnreadableRecord(ForerunError, ValueError):
    """A file without a valid benchmark record."""


class UnreadableTrace(ForerunError, ValueError):
    """A file without a valid step trace."""


class UnreadableModel(ForerunError, ValueError):
    """A directory without a complete model."""


class UnsupportedModel(ForerunError, ValueError):
    """A model that this engine cannot run with identical output."""


class UnreadableAnswer(ForerunError, ValueError):
    """A server response without the token ids or logprobs that are needed."""


class ServerFailed(ForerunError, RuntimeError):
    """A server that does not respond, or responds with an error or invalid data."""


class RequestRefused(ForerunError, ValueError):
    """A request that the server rejects."""


class UnsupportedEngine(ForerunError, RuntimeError):
    """A vLLM version or configuration that is not supported."""


class VocabularyMismatch(ForerunError, ValueError):
    """Two models or files with different vocabularies."""


class OutputNotWritable(ForerunError, OSError):
    """An output path that cannot be written."""


class MissingExtra(ForerunError, ImportError):
    """An optional dependency is not installed; `instead` names an alternative."""

    def __init__(self, package: str, extra: str, instead: str = "") -> None:
        remedy = install_command(extra) + (f", or {instead}" if instead else "")
        super().__init__(f"this needs {package}, which is not installed: {remedy}")
