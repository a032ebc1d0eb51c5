"""The prompts of an audit: of a file, or the built-in ones.

The built-in prompts repeat themselves, so that lookup drafters propose draft tokens, but not so strictly that
acceptance is nearly certain: a bias shows only where some draft tokens are accepted and some rejected.
"""

from __future__ import annotations

from pathlib import Path

from forerun.prompts import read_prompt_file
from forerun.servers.completions import Prompt

DEFAULT_PROMPTS = (
    "Name: Anna, Age: 31. Name: Ben, Age: 27. Name: Carla, Age: 31. Name: David, Age:",
    "Q: Is it cold? A: Yes, it is. Q: Is it warm? A: No, it is not. Q: Is it wet? A:",
    "I like tea and toast in the morning. You like coffee and toast in the morning. We like tea and cake in"
    " the evening. They like coffee and cake in the",
    "The cat sat on the mat and the dog sat on the rug, and then the cat sat on the mat and the dog sat on"
    " the rug, and then the",
)


def read_prompts(file: Path | None, max_prompts: int | None = None) -> list[Prompt]:
    """The first prompts of a file, or of the built-in ones if there is none."""
    if file is None:
        return [Prompt(text) for text in DEFAULT_PROMPTS][:max_prompts]
    return [Prompt(each.text, each.ids) for each in read_prompt_file(file)][:max_prompts]
