"""Continuous batching on transformers models: schedule, draft, forward, verify, commit.

- `request`: requests, results and their statistics; `request_checks`: what is refused
- `stop_checker`: stop conditions and incremental text; `running_request`: an admitted request
- `verification`: verifies a batch; a request with broken logits fails alone
- `engine`: `step()`, the loop
- `llm`: `generate` and `LLM`, the Python API; `drafter_spec`: their `drafter` argument
- `beam_search`: beam search, one prompt at a time
- `step_profiler`, `startup`: one-time work of a first run, logged
- `trace_writer`, `trace_reader`, `trace_page`: every step as JSON lines, and as an HTML page
"""
