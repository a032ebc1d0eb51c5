"""Drafting from documents: answers that quote a corpus are drafted from it.

python examples/local/corpus.py MODEL_DIRECTORY docs/*.md
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from forerun import LLM, SpeculationConfig

model, *documents = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    corpus = Path(folder) / "documents.corpus"
    build = ["forerun", "corpus", "build", *documents, "--tokenizer", model, "--output", str(corpus)]
    subprocess.run([sys.executable, "-m", *build], check=True)  # noqa: S603
    llm = LLM(model, config=SpeculationConfig(corpora=(corpus,)))
    paragraphs = Path(documents[0]).read_text(encoding="utf-8").split("\n\n")
    passage = next(each for each in paragraphs if len(each.split()) > 30)
    prompt = f"{passage}\n\nThe same passage once more:\n\n{passage[:40]}"
    result = llm.generate(prompt, max_tokens=48)
    baseline = llm.generate(prompt, max_tokens=48, max_draft=0)
    print(result.text)
    print(f"{result.stats.tokens_per_step:.2f} tokens per step; identical output: ", end="")
    print(result.token_ids == baseline.token_ids)
