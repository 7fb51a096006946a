# Every target does its own set-up. A machine needs Python 3.11 or newer, make, and a package index that pip can reach.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv

# The packages of the demo, and those that the development tools add; both are pinned with hashes.
RUN    := $(VENV)/.run-installed
DEV    := $(VENV)/.dev-installed

# The tests start hundreds of processes. Without compiled files each would compile all of its imports again.
unexport PYTHONDONTWRITEBYTECODE

# A company's own certificate authority is in the system's store. uv and pip trust that store beside their own lists.
export UV_SYSTEM_CERTS ?= true
export UV_NATIVE_TLS ?= $(UV_SYSTEM_CERTS)
# pip before 24.2 has no such setting. Its own settings (PIP_CERT, pip.conf) take precedence over this one. The value is the
# store's file, else its folder, else nothing, which pip ignores.
SYSTEM_CERTS := import os, ssl; store = ssl.get_default_verify_paths(); \
	print(store.cafile or (store.capath if store.capath and os.listdir(store.capath) else ""))

.DEFAULT_GOAL := help

help: ## List the targets
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

demo: $(if $(BROKER),$(DEV),$(RUN)) ## Run orders through staged endpoints to an HTTP consumer, and prove with Spark that each ran once; ORDERS=file STORE=postgres BROKER=rabbitmq|activemq
	@$(BIN)/python -m examples.payments.demo $(if $(ORDERS),--orders $(ORDERS)) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE)) $(if $(DATABASE),--database $(DATABASE)) $(if $(BROKER),--broker $(BROKER))

# Three at a time, also on two cores: a fault test waits for other processes for half of its time.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal --durations=20

test: $(DEV) ## Run a sample of each kind of test, with real processes and real Spark; ten minutes on two cores
	$(PYTEST) $(ARGS)

test-more: $(DEV) ## Run the rest of the tests of CI; half an hour on two cores
	$(PYTEST) -m "more and not soak" $(ARGS)

soak: $(DEV) ## Run long fault campaigns over real orders (ORDERS=file); BROKER=rabbitmq|activemq MINUTES=60 for one over a broker
ifdef BROKER
	$(BIN)/python -m tests.soak.brokers $(BROKER) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)
else
	$(PYTEST) -m soak
	$(BIN)/python -m tests.soak $(if $(ORDERS),--orders $(ORDERS)) $(ARGS)
	$(BIN)/python -m tests.soak --store postgres $(if $(ORDERS),--orders $(ORDERS)) $(ARGS)
endif

mutants: $(DEV) ## Break each promise of ARCHITECTURE.md and see a test fail; ARGS="words of a promise" for one
	$(BIN)/python -m tests.house.mutants $(ARGS)

crossings: $(DEV) ## List the files of src that one order passes through, in order; CI holds their number
	$(BIN)/python -m tests.house.crossings

bench: $(DEV) ## Measure ratios against the bare database, side by side
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(DEV) ## Check the style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## Run mypy --strict
	$(BIN)/mypy

rules: $(DEV) ## Check the import rules
	$(BIN)/lint-imports

check: lint types rules test test-more ## Run all checks and tests of CI

pins: $(DEV) ## Resolve the pinned dependencies again
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --extra spark --extra postgres --extra gateway pyproject.toml -o requirements/run.txt
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --extra spark --extra postgres --extra rabbitmq --extra scopes --extra gateway --extra sqlalchemy --extra django --extra redis --group dev -c requirements/run.txt pyproject.toml -o requirements/dev.txt
	echo uv | $(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url - -o requirements/uv.txt

clean: ## Remove the environment and the demo's files
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: help demo test test-more soak mutants crossings bench lint types rules check pins clean
