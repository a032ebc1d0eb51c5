# The same targets for developers and for CI. `make setup` creates .venv from scratch.
VENV ?= .venv
PYTHON ?= python3.11
RUN := $(VENV)/bin

.PHONY: setup models check format unit test docs bench-beam-search bench-control bench-core bench-drafters bench-invariant bench-load bench-local bench-overhead bench-prediction bench-run-ahead bench-sampled-trees bench-sampler bench-stock-load bench-tune check-invariant check-invariant-vllm notebook parity-v2 test-v2 readme reference simulate soak build clean

setup:
	PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/setup.sh

# Converts the test model on first use; prints its directory on its last line.
models:
	@$(RUN)/python scripts/models.py

check:
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy

format:
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

# Needs no engine, model or server: under a minute on two cores once the kernels are compiled. Each worker has one
# core and one thread.
unit:
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/unit --numprocesses auto --dist worksteal

# Engine tests run file by file, those of tests/e2e/serve together (tests/e2e/conftest.py), with two workers at
# most: an engine takes several gigabytes.
test: unit
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/integration --numprocesses auto --dist worksteal
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/e2e --numprocesses auto --maxprocesses 2 --dist loadfile -m "not full"

# Fails if a reference page is stale, then builds the site into site/.
docs:
	@$(RUN)/python scripts/reference.py --check
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --site-dir site

# Keeps freed memory, as servers' allocators do. Otherwise page faults of 28 MB blocks, which depend on the state
# of the heap, dominate both sides of the comparison.
bench-core:
	@MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=4294967296 $(RUN)/python scripts/bench_core.py $(ARGS)

# Builds a corpus of 10^8 tokens: one or two minutes, 3 GB of memory, 1 GB of disk.
bench-drafters:
	@$(RUN)/python scripts/bench_drafters.py $(ARGS)

# The local engine against transformers: about twenty minutes on an otherwise idle machine.
bench-local:
	@$(RUN)/python scripts/bench_local.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Tokens per step of sampled draft trees and chains of one size: about six minutes. ARGS="--draft DIR".
bench-sampled-trees:
	@$(RUN)/python scripts/bench_sampled_trees.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# The V1 sampler: whole drafts at once against position by position. Two minutes.
bench-sampler:
	@$(RUN)/python scripts/bench_sampler.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Time of one controller decision: half a minute.
bench-control:
	@$(RUN)/python scripts/bench_control.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Time that forerun's scheduler adds to a step of vLLM, by load: about ten minutes on an otherwise idle machine.
bench-overhead:
	@$(RUN)/python scripts/bench_overhead.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Speculation against the baseline in one vLLM engine, by load, text and dtype: an hour per dtype on an otherwise
# idle machine.
bench-load:
	@$(RUN)/python scripts/bench_load.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Load by vLLM's own client, `vllm bench serve`, against stock vLLM and forerun in alternation: about ten minutes per
# cell, and the record is continued. ARGS="--load closed-8,closed-32 --temperature 0 --alternations 5".
bench-stock-load:
	@$(RUN)/python scripts/bench_stock_load.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Speculative beam search against transformers and against no draft: about five minutes. ARGS="--draft DIR".
bench-beam-search:
	@$(RUN)/python scripts/bench_beam_search.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Run-ahead drafting against sequential drafting on two cores: about ten minutes. ARGS="--draft DIR".
bench-run-ahead:
	@$(RUN)/python scripts/bench_run_ahead.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Predicted outputs against stock vLLM and against forerun without a prediction: about 260 requests, one at a time.
bench-prediction:
	@$(RUN)/python scripts/bench_prediction.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# A server under mixed requests of many clients with random aborts: lost requests, memory, and outputs replayed
# without speculation. An hour.
soak:
	@$(RUN)/python scripts/soak.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# The recommendation of `forerun tune` against a full sweep: about an hour per prompt file.
bench-tune:
	@$(RUN)/python scripts/bench_tune.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Invariant mode of the local engine: output with and without speculation, by drafter and batch. One to two
# hours in bfloat16 without bfloat16 instructions; ARGS="--num-prompts 8 --max-tokens 32" takes minutes, and
# ARGS="--record docs/records/invariant.jsonl --draft-model DIR" continues the record.
check-invariant:
	@$(RUN)/python scripts/check_invariant.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# The same in vLLM on a CPU: ten minutes. ARGS=--ordinary runs without the mode, for its cost.
check-invariant-vllm:
	@$(RUN)/python scripts/check_invariant_vllm.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Throughput of invariant mode against the ordinary one, with and without speculation: five minutes per dtype.
bench-invariant:
	@$(RUN)/python scripts/bench_invariant.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Output of forerun on vLLM's V2 model runner against stock V2, with Triton's interpreter: about 40 minutes on two cores.
# ARGS=--quick takes a few minutes, ARGS=--distribution samples the output distribution.
parity-v2:
	@OMP_NUM_THREADS=1 $(RUN)/python scripts/parity_v2.py $(ARGS)

# The tests on the V2 runner that `make test` leaves out: scenarios, both modes, tensor parallelism, SmolLM2.
test-v2:
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/e2e --numprocesses auto --maxprocesses 2 --dist loadfile -m full

# Runs the example notebook and stores its outputs: about five minutes.
notebook:
	@MODEL="$$($(RUN)/python scripts/models.py | tail -1)" VLLM_CPU_KVCACHE_SPACE=1 $(RUN)/jupyter-execute --inplace \
		examples/serving/serve_measure_audit.ipynb

# Generates the tables in README and docs from the records; ARGS=--check fails if one is stale.
readme:
	@$(RUN)/python scripts/readme.py $(ARGS)

# Generates the reference pages for the command line, the configuration and the metrics; ARGS=--check fails if
# one is stale.
reference:
	@$(RUN)/python scripts/reference.py $(ARGS)

# Simulates all scenarios, including a fleet of a thousand replicas, the grid and wrong estimates: about half an hour.
simulate:
	@$(RUN)/python scripts/record_simulations.py $(ARGS)

build:
	$(RUN)/python -m build

clean:
	rm -rf site dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
