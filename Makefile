# Four commands for people and for CI; each works from a fresh clone, with nothing done before it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTS ?= tests
# Tests of faults wait more than they compute: more of them than cores may run side by side.
TEST_PROCESSES ?= 3
STORE ?= sqlite
BENCH_JSON := bench-results/$(STORE)$(findstring -gateway,$(BENCH_OPTIONS)).json

.DEFAULT_GOAL := help
.PHONY: help demo test check bench chaos fuzz format docs services install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## a lively mix of tasks on an embedded store, with a live table
	@$(BIN)/holdfast demo

test: $(STAMP) services ## all tests (TESTS=tests/unit for a part)
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal $(TESTS) || { echo "once more, alone, what failed beside everything else:"; \
	  $(BIN)/pytest --last-failed --last-failed-no-failures none $(TESTS); }

check: $(STAMP) ## ruff, mypy in strict mode, and the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## rates and latencies with real workers (STORE=redis for another store)
	@mkdir -p $(dir $(BENCH_JSON))
	@$(BIN)/holdfast bench --store $(STORE) --output $(BENCH_JSON) $(BENCH_OPTIONS)

chaos: $(STAMP) services ## faults under load, every promise checked (COUNT=20 SEED=1 DEPLOYMENT=cluster|sentinel|single|postgres|patroni|gateway)
	@$(BIN)/python -m chaos --count $(or $(COUNT),20) --deployment $(or $(DEPLOYMENT),cluster) $(if $(SEED),--seed $(SEED)) $(CHAOS_OPTIONS)

fuzz: $(STAMP) services ## requests made from the OpenAPI document, every answer checked (STORE=sqlite|redis|postgres REQUESTS=20000 SEED=1)
	@$(BIN)/python -m tests.api.fuzz --store $(STORE) --requests $(or $(REQUESTS),20000) $(if $(SEED),--seed $(SEED)) $(FUZZ_OPTIONS)

format: $(STAMP) ## rewrites the code as `make check` wants it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(STAMP) ## rewrites the parts of docs/ that come from the code
	$(BIN)/python docs/generate.py

services:
	@scripts/ensure-services

install: $(STAMP) ## the virtual environment only
	@echo "$(BIN)/holdfast is ready"

clean: ## removes the virtual environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Holdfast needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 ..."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "no virtual environment could be made; on Debian: apt install python3-venv"; exit 1; }
	@echo "installing into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fast,redis,postgres,server,otel,crypto,testing,dev]'
	@touch $@
