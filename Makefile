# Everything a newcomer needs; `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup compare test gallery sanitize mutate audit versions stubs lint format types clean
.PHONY: fuzz kills endurance sanitizers package

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Create .venv and install everything into it

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,dev,report,examples]'
	touch $(STAMP)

compare: $(STAMP) ## Check every op family: Triton against CUDA against the oracle
	$(BIN)/python -m compare check --quick

test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=25

sanitize: $(STAMP) ## The quick check, with the CUDA sources built for the CPU under ASan
	$(BIN)/python -m compare check --quick --sanitize address

MUTANTS ?= 24

mutate: $(STAMP) ## Plant faults in the kernels, a sample, and see that the check catches them
	$(BIN)/python -m compare mutate --sample $(MUTANTS) --limit 150

audit: $(STAMP) ## Look the installed packages up among known vulnerabilities; needs a network
	.ci/audit $(BIN)/python

gallery: $(STAMP) ## The gallery of kernels in the dtypes that the tests leave out
	$(BIN)/python -m pytest -q -n auto --dist worksteal --gallery tests/debug/test_gallery.py

versions: $(STAMP) ## The interpreter's tests on other versions of Triton and numpy
	$(BIN)/python .ci/versions

# Long runs: each keeps its figures, of which `compare report --facts docs/FACTS.md` makes a table.
LONG = $(BIN)/python -m pytest -q --long docs/benchmarks/$@.json

fuzz: $(STAMP) ## Long: 10 000 calls that hypothesis draws, of all ops, by oracle and torch
	$(LONG) --hypothesis-profile thorough tests/kernels/test_properties.py

kills: $(STAMP) ## Long: 100 builds killed at random moments, 8 processes that build at once
	$(LONG) tests/cuda/test_kills.py

endurance: $(STAMP) ## Long: 100 000 calls and memory; 16 threads; fork, spawn, forkserver
	$(LONG) tests/kernels/test_endurance.py

sanitizers: $(STAMP) ## Long, on a GPU: compute-sanitizer's tools over telling cases
	$(LONG) tests/cuda/test_sanitizers.py

package: $(STAMP) ## Long: wheel and sdist, installed elsewhere, pass the quick check
	$(LONG) tests/house/test_package.py

stubs: $(STAMP) ## Write the stubs that list the ops for editors and type checkers
	$(BIN)/python .ci/stubs

lint: $(STAMP) ## Lint, check the formatting and that the stubs are fresh
	$(BIN)/python .ci/stubs --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## Format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## Check the types
	$(BIN)/mypy

clean: ## Remove what was built or installed here
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
