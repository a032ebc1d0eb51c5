#!/usr/bin/env bash
# Checks the subject of the commit message in the given file; pre-commit's commit-msg hook runs it.
set -euo pipefail
subject="$(head -1 "$1")"
if [ "${#subject}" -gt 72 ] || [[ "$subject" = *. ]]; then
  echo "got a subject of ${#subject} characters: $subject" >&2
  echo "expected at most 72, imperative, without a full stop, as in: vllm: verify draft tokens on the V2 runner" >&2
  exit 1
fi
