"""The whole exception tree. Each message names what was got, what was expected and the remedy.

```text
ForerunError
├── ConfigurationError        a configuration that cannot be meant (also a ValueError)
│   └── UnknownKey            a key nobody reads; names the nearest known one
├── InvalidSampling           sampling settings out of range (also a ValueError)
├── InvalidRequest            what a request asks of speculation cannot be meant (also a ValueError)
├── InvalidDraft              a guess that breaks the contract of `Draft` (also a ValueError)
├── InvalidDistribution       numbers that are no distribution: NaN, nothing left to say (also a ValueError)
├── InvalidCorpus             a corpus file that is cut off, damaged or of another version (also a ValueError)
├── UnreadableTranscripts     a file that holds no transcripts (also a ValueError)
├── UnreadablePrompts         a file that holds no prompts (also a ValueError)
├── UnreadableRecord          a file that holds no record of a benchmark (also a ValueError)
├── UnreadableTrace           a file that holds no trace of rounds (also a ValueError)
├── UnreadableModel           a directory that holds no model, or not all of one (also a ValueError)
├── UnsupportedModel          a model that cannot be run here without changing its words (also a ValueError)
├── UnreadableAnswer          a server's answer does not say which tokens it is made of (also a ValueError)
├── ServerFailed              a server does not answer, or not with sense (also a RuntimeError)
├── RequestRefused            a server does not take a request (also a ValueError)
├── UnsupportedEngine         a vLLM that is not the one we know (also a RuntimeError)
├── VocabularyMismatch        two models or files that do not share their tokens (also a ValueError)
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
    """The end of a message about a name that nobody knows: the nearest that is known, or all of them."""
    names = list(known)
    near = get_close_matches(given, names, n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"


class ForerunError(Exception):
    """Everything forerun raises on purpose."""


class ConfigurationError(ForerunError, ValueError):
    """A configuration that cannot be meant."""


class UnknownKey(ConfigurationError):
    """A configuration key nobody reads."""


class InvalidSampling(ForerunError, ValueError):
    """Sampling settings out of range."""


class InvalidRequest(ForerunError, ValueError):
    """What a request asks of speculation cannot be meant."""


class InvalidDraft(ForerunError, ValueError):
    """A guess that breaks the contract of `Draft`."""


class InvalidDistribution(ForerunError, ValueError):
    """Numbers that are no distribution."""


class InvalidCorpus(ForerunError, ValueError):
    """A corpus file that is cut off, damaged or of another version."""


class UnreadableTranscripts(ForerunError, ValueError):
    """A file that does not hold transcripts."""


class UnreadablePrompts(ForerunError, ValueError):
    """A file that does not hold prompts."""


class UnreadableRecord(ForerunError, ValueError):
    """A file that does not hold a record of a benchmark."""


class UnreadableTrace(ForerunError, ValueError):
    """A file that does not hold a trace of rounds."""


class UnreadableModel(ForerunError, ValueError):
    """A directory that does not hold a model, or not all of one."""


class UnsupportedModel(ForerunError, ValueError):
    """A model that cannot be run here without changing its words."""


class UnreadableAnswer(ForerunError, ValueError):
    """A server's answer does not say which tokens it is made of."""


class ServerFailed(ForerunError, RuntimeError):
    """A server does not answer, or not with sense."""


class RequestRefused(ForerunError, ValueError):
    """A server does not take a request."""


class UnsupportedEngine(ForerunError, RuntimeError):
    """A vLLM that is not the one we know."""


class VocabularyMismatch(ForerunError, ValueError):
    """Two models or files that do not share their tokens."""


class OutputNotWritable(ForerunError, OSError):
    """An output path that cannot be written."""


class MissingExtra(ForerunError, ImportError):
    """An optional dependency is not installed; `instead` is a way to do without it."""

    def __init__(self, package: str, extra: str, instead: str = "") -> None:
        remedy = install_command(extra) + (f", or {instead}" if instead else "")
        super().__init__(f"this needs {package}, which is not installed: {remedy}")
