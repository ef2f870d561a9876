# The two commands of the README are `make serve` and `make test`; everything else is for work on Sluice.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# pip, not uv: uv would resolve torch's range to the CUDA build.
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Files whose hashes are not the locked ones are refused. What is left to resolve after that is
# torch alone, by its range and as your index has it (engine/torch_build.py says which build); what
# builds Sluice is locked too.
LOCKED := $(PIP) install --quiet --require-hashes --no-deps --requirement
SLUICE := $(PIP) install --quiet --no-build-isolation --editable

.DEFAULT_GOAL := help
.PHONY: help install serve observe test thorough clients soak lint format audit lock clean

help:            ## List the targets
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/: *.*## */\t/' | expand -t 12

install: $(VENV)/.installed  ## Make the virtual environment and install Sluice

serve: $(VENV)/.installed    ## Start the gateway with its demo model
	@$(BIN)/sluice serve $(ARGS)

observe: $(VENV)/.installed  ## Start Debian's Prometheus beside a running `make serve`
	@$(BIN)/python -m gateway.cli.observe $(ARGS)

# First two at a time, as much of it waits for servers; then those that need the cores alone.
# Bytecode is kept even where a machine's setting says otherwise: hundreds of servers and commands
# are started, and each would compile all of Sluice anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --durations=50 --durations-min=0.5
BESIDE := -n 2 --dist loadfile --no-loadscope-reorder
# Which files have tests of a mark, so that a run of these need not collect all the others again.
marked  = $(shell grep -rl --include='test_*.py' 'mark\.$(1)' tests)

test: $(VENV)/.tested        ## Run what holds each promise at a small size, without a GPU (ARGS="tests/engine -k kv")
ifdef ARGS
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(ARGS)
else
	@status=0; \
	  $(PYTEST) $(BESIDE) -m "not alone and not thorough" || status=1; \
	  $(PYTEST) -m alone $(call marked,alone) || status=1; \
	  exit $$status
endif

thorough: $(VENV)/.tested    ## Run the other tests: documents, charts, pages in a browser, compiled kernels, the suites
	@$(PYTEST) $(BESIDE) -m thorough $(call marked,thorough)

clients: $(VENV)/.tested     ## Run other projects' clients against Sluice (installs 3 GB into .venv/clients)
	@$(PYTEST) -n 2 --dist loadfile --timeout 900 tests/clients $(ARGS)

soak: $(VENV)/.tested        ## Run the promises at full size; writes docs/benchmarks/*.json
	@$(BIN)/python -m tests.soak $(ARGS)

lint: $(VENV)/.tested        ## Check style, types and the direction of imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.tested      ## Rewrite the code in the house's style
	@$(BIN)/ruff check --fix --exit-zero .
	@$(BIN)/ruff format .

audit: $(VENV)/.installed    ## Look for known vulnerabilities in what is locked (needs the network)
	@$(BIN)/python -m tests.supply.audit

lock:            ## Write the lock files anew (ARGS="--upgrade" for the newest versions)
	@$(PYTHON) -m venv $(VENV)/lock
	@$(VENV)/lock/bin/python -m pip --disable-pip-version-check install --quiet uv
	@$(VENV)/lock/bin/python -m tests.supply.lock $(ARGS)

clean:           ## Remove the virtual environment and the caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Sluice needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "Installing Sluice into $(VENV) (about a minute) …" >&2
	@torch=$$($(BIN)/python -m engine.torch_build) && \
	  $(LOCKED) requirements.lock && \
	  $(PIP) install --quiet "$$torch"
	@$(SLUICE) .
	@# Without a C++ compiler everything runs on torch alone.
	@$(BIN)/python -m engine.native build || true
	@touch $@

$(VENV)/.tested: tests/requirements.lock $(VENV)/.installed
	@echo "Installing the test tools into $(VENV) …" >&2
	@$(LOCKED) tests/requirements.lock
	@$(SLUICE) '.[test]'
	@touch $@
