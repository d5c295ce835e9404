# Four commands for people and for CI; each works from a fresh clone, with nothing done before it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the demo needs, 11 packages; and what working on Holdfast needs.
LIGHT := $(VENV)/.installed-light
STAMP := $(VENV)/.installed
PIP_INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
TESTS ?= tests
# Tests of faults wait more than they compute: more of them than cores may run side by side.
TEST_PROCESSES ?= 3
# What pytest exits with if it was given nothing to run.
NO_TESTS := 5
STORE ?= sqlite
BENCH_JSON := bench-results/$(STORE)$(findstring -server,$(BENCH_OPTIONS)).json

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-all test-encrypted check mutants bench chaos fuzz format docs services install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(LIGHT) ## a lively mix of tasks on an embedded store, with a live table
	@$(BIN)/holdfast demo

# Those that need the machine for themselves run after the others, one at a time. Nothing is run a second time.
define run_tests
	@code=0; \
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal -m '$(1) and not alone' $(TESTS) || [ $$? -eq $(NO_TESTS) ] || code=1; \
	$(BIN)/pytest -m '$(1) and alone' $(TESTS) || [ $$? -eq $(NO_TESTS) ] || code=1; \
	exit $$code
endef

test: $(STAMP) services ## the tests (TESTS=tests/core for a part)
	$(call run_tests,not long)

test-long: $(STAMP) services
	$(call run_tests,long)

test-all: test test-long ## all tests: also every case of the kit on every store and over HTTP, and long faults

test-encrypted: export HOLDFAST_TEST_ENCRYPTED = 1
test-encrypted: ## the worker tests and the kit with signing and encryption on
	@$(MAKE) test-all TESTS="tests/worker tests/stores/test_encrypted_kit.py"

mutants: $(STAMP) services ## can the tests fail? plants bugs one at a time (MUTANTS="core redis-R01" for some)
	@$(BIN)/python -m tests.mutants $(MUTANTS)

check: $(STAMP) ## ruff, mypy in strict mode, the layers, and the docs as a site without a broken link
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --site-dir $(VENV)/site

bench: $(STAMP) ## rates and latencies with real workers (STORE=redis for another store)
	@mkdir -p $(dir $(BENCH_JSON))
	@$(BIN)/holdfast bench --targets --store $(STORE) --output $(BENCH_JSON) $(BENCH_OPTIONS)

chaos: $(STAMP) services ## faults under load, every promise checked (COUNT=20 SEED=1 DEPLOYMENT=cluster|sentinel|single|postgres|patroni|server|sqlite…)
	@$(BIN)/python -m chaos --count $(or $(COUNT),20) --deployment $(or $(DEPLOYMENT),cluster) $(if $(SEED),--seed $(SEED)) $(CHAOS_OPTIONS)

fuzz: $(STAMP) services ## large bodies beside busy workers, then requests made from the OpenAPI document, every answer checked (STORE=sqlite|redis|postgres REQUESTS=20000 SEED=1)
	@$(BIN)/python -m tests.server.fuzz --store $(STORE) --requests $(or $(REQUESTS),20000) $(if $(SEED),--seed $(SEED)) $(FUZZ_OPTIONS)

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

$(LIGHT): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Holdfast needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3 ..."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "no virtual environment could be made; on Debian: apt install python3-venv"; exit 1; }
	@echo "installing Holdfast into $(VENV) ..."
	@$(PIP_INSTALL) -e .
	@touch $@

$(STAMP): $(LIGHT)
	@echo "installing what the tests and checks need into $(VENV) ..."
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > $(VENV)/dev.txt
	@$(PIP_INSTALL) -e '.[all,testing]' -r $(VENV)/dev.txt
	@touch $@
