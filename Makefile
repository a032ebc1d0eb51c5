# The same targets by hand and in CI. `make setup` builds .venv from nothing.
VENV ?= .venv
PYTHON ?= python3.11
RUN := $(VENV)/bin

.PHONY: setup models check format test docs bench-control bench-core bench-drafters bench-load bench-local bench-tune readme reference simulate build clean

setup:
	PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/setup.sh

# The last line printed is the directory of the model.
models:
	@$(RUN)/python scripts/models.py

check:
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy

format:
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

# Tests share the cores among them, a thread for each. Those with real engines go file by file, two at a time:
# an engine takes some gigabytes.
test:
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/unit tests/integration --numprocesses auto --dist worksteal
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/e2e --numprocesses auto --maxprocesses 2 --dist loadfile

# Fails where a reference page is stale, then builds the site into site/.
docs:
	@$(RUN)/python scripts/reference.py --check
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --quiet --site-dir site

# Freed memory is kept, as servers' allocators do: otherwise page faults of 28 MB blocks, which come and go
# with the state of the heap, are most of what is measured on either side.
bench-core:
	@MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=4294967296 $(RUN)/python scripts/bench_core.py $(ARGS)

# Builds a corpus of 10^8 tokens on the way: a minute or two, 3 GB of memory, 1 GB of disk.
bench-drafters:
	@$(RUN)/python scripts/bench_drafters.py $(ARGS)

# The local engine beside plain transformers: about twenty minutes, on a machine that does nothing else.
bench-local:
	@$(RUN)/python scripts/bench_local.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# How long the controller takes to decide: half a minute.
bench-control:
	@$(RUN)/python scripts/bench_control.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# Guesses beside none in one vLLM, by load, text and precision: an hour for each precision, on a machine
# that does nothing else.
bench-load:
	@$(RUN)/python scripts/bench_load.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# What tune recommends beside a sweep of everything: an hour or so for each file of prompts.
bench-tune:
	@$(RUN)/python scripts/bench_tune.py --model "$$($(RUN)/python scripts/models.py | tail -1)" $(ARGS)

# The documents' tables of speeds from the records; ARGS=--check fails where one is stale.
readme:
	@$(RUN)/python scripts/readme.py $(ARGS)

# The reference pages from the command line, the configuration and the metrics; ARGS=--check fails where one
# is stale.
reference:
	@$(RUN)/python scripts/reference.py $(ARGS)

# Scenarios, a fleet of a thousand among them, and the grid: about a quarter of an hour.
simulate:
	@$(RUN)/python scripts/record_simulations.py $(ARGS)

build:
	$(RUN)/python -m build

clean:
	rm -rf site dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
