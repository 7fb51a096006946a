# Every target does its own set-up. A machine needs Python 3.11 or newer, make, and a package index that pip can reach.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv

# What the demo runs, and what the development tools add; both pinned with hashes.
RUN    := $(VENV)/.run-installed
DEV    := $(VENV)/.dev-installed

# Processes are started by the hundred here: each would compile all that it imports, where nobody keeps it.
unexport PYTHONDONTWRITEBYTECODE

# A company's own certificate authority is in the system's store: uv and pip trust that, and not only their own lists.
export UV_SYSTEM_CERTS ?= true
export UV_NATIVE_TLS ?= $(UV_SYSTEM_CERTS)
# For pip, which before 24.2 knows no such setting; its own settings (PIP_CERT, pip.conf) go before this one. The file of
# the store, else its folder, else nothing, which pip ignores.
SYSTEM_CERTS := import os, ssl; store = ssl.get_default_verify_paths(); \
	print(store.cafile or (store.capath if store.capath and os.listdir(store.capath) else ""))

.DEFAULT_GOAL := help

help: ## What can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/' | column -t -s '|'

$(UV): requirements/uv.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stagepost needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	REQUESTS_CA_BUNDLE="$${REQUESTS_CA_BUNDLE:-$${CURL_CA_BUNDLE:-$$($(BIN)/python -c '$(SYSTEM_CERTS)')}}" \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(RUN): $(UV) requirements/run.txt pyproject.toml
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/run.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

$(DEV): $(RUN) requirements/dev.txt
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

demo: $(RUN) ## Orders through staged, transactional endpoints, and Spark proves each was executed once; ORDERS=file STORE=postgres
	@$(BIN)/python -m examples.payments.demo $(if $(ORDERS),--orders $(ORDERS)) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE)) $(if $(DATABASE),--database $(DATABASE))

# Three at a time, also on two cores: half of what a fault test takes, it waits for others.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal --durations=20

test: $(DEV) ## The tests, with real processes and real Spark: a sample of each kind, ten minutes on two cores
	$(PYTEST) $(ARGS)

test-more: $(DEV) ## The rest of what CI must see, half an hour on two cores
	$(PYTEST) -m "more and not soak" $(ARGS)

soak: $(DEV) ## Long fault campaigns: 200 kill -9 over real orders (ORDERS=file), 200 under slow handlers, seeds of the simulation
	$(PYTEST) -m soak
	$(BIN)/python -m tests.soak $(if $(ORDERS),--orders $(ORDERS)) $(ARGS)
	$(BIN)/python -m tests.soak --store postgres $(if $(ORDERS),--orders $(ORDERS)) $(ARGS)

mutants: $(DEV) ## Break each promise of ARCHITECTURE.md and see a test fail; ARGS="words of a promise" for one
	$(BIN)/python -m tests.house.mutants $(ARGS)

bench: $(DEV) ## Ratios against the bare database, measured side by side
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(DEV) ## Style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## mypy --strict
	$(BIN)/mypy

rules: $(DEV) ## Who may import whom
	$(BIN)/lint-imports

check: lint types rules test test-more ## All of it

pins: $(DEV) ## Resolve the pinned dependencies anew
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --extra spark --extra postgres pyproject.toml -o requirements/run.txt
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --extra spark --extra postgres --group dev -c requirements/run.txt pyproject.toml -o requirements/dev.txt
	echo uv | $(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url - -o requirements/uv.txt

clean: ## Remove the environment and what the demo left
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: help demo test test-more soak mutants bench lint types rules check pins clean
