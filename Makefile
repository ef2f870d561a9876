# The two commands of the README are `make serve` and `make test`; everything else is for work on Sluice.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# pip, not uv: uv would resolve torch's range to the CUDA build.
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install serve test soak lint format lock clean

help:            ## List the targets
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/: *.*## */\t/' | expand -t 12

install: $(VENV)/.installed  ## Make the virtual environment and install Sluice

serve: $(VENV)/.installed    ## Start the gateway with its demo model
	@$(BIN)/sluice serve $(ARGS)

# First two at a time, as much of it waits for servers; then those that need the cores alone.
PYTEST := $(BIN)/python -m pytest --durations=50 --durations-min=0.5

test: $(VENV)/.tested        ## Run every test that needs no GPU (ARGS="tests/engine -k kv")
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@status=0; \
	  $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not alone" || status=1; \
	  $(PYTEST) -m alone || status=1; \
	  exit $$status
endif

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

lock: $(VENV)/.tested        ## Write requirements.lock from what is installed
	@{ echo "# What the tests ran with; used as constraints. torch is left to its range, because"; \
	   echo "# the right build differs between machines. Rewrite with 'make lock'."; \
	   $(PIP) freeze --exclude-editable | grep -viE '^(torch|triton|nvidia-|cuda-)' ; } > requirements.lock

clean:           ## Remove the virtual environment and the caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Sluice needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "Installing Sluice into $(VENV) (about a minute) …" >&2
	@$(PIP) install --quiet --constraint requirements.lock --editable .
	@# Without a C++ compiler everything runs on torch alone.
	@$(BIN)/python -m engine.native build || true
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	@echo "Installing the test tools into $(VENV) …" >&2
	@$(PIP) install --quiet --constraint requirements.lock --editable '.[test]'
	@touch $@
