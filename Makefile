# `make help` lists what there is. Every target sets up what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Tests start hundreds of programs: what these import is compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
READY := .venv/.ready
SPARK42 := .venv-spark42
CODE := src tests tools $(wildcard bench examples)

.PHONY: help setup run serve test fmt lint types imports spelling sim properties fuzz crash crash-server crash-lakes crash-pipeline overload hostile soak flips mutants bench bench-compare docs check audit licences clients terraform lock services spark clean

help: ## show this list
	@printf 'Millrace: a durable message queue.\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make \033[1m%-12s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything in it (the other targets do it when needed)

$(READY): requirements.lock pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh
	@touch $@

$(SPARK42)/.ready: tests/spark/spark42.lock pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh $(SPARK42) tests/spark/spark42.lock
	@touch $@

run: $(READY) ## run the demonstration: in the program, through a server, through Spark into a lake
	@$(BIN)/python examples/demo.py
	@$(BIN)/python examples/lake.py

serve: $(READY) ## serve the folder millrace-data over HTTP, until Ctrl-C
	@$(BIN)/millrace serve $(ARGS)

test: check services ## what CI runs: format, lint, types, import contracts, spelling, tests
	@$(BIN)/python -m pytest -n auto --no-loadscope-reorder tests $(ARGS)

fmt: $(READY) ## format the code and mend what the linter can
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

lint: $(READY) ## check format and lint
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)

types: $(READY) ## check types, strictly
	@$(BIN)/mypy $(CODE)

imports: $(READY) ## check that imports point down
	@$(BIN)/lint-imports --no-cache --no-logo

spelling: $(READY) ## check spelling
	@$(BIN)/codespell

check: lint types imports spelling ## everything of `test` but the tests

sim: $(READY) ## simulate crashes and faults: N=seeds, or SEED=one to replay
	@$(BIN)/python -m tests.support.simulator --seeds $(or $(N),200) $(if $(SEED),--seed $(SEED))

properties: $(READY) ## look for examples that `test` does not try, in N rounds
	@for round in $$(seq $(or $(N),10)); do $(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile search tests $(ARGS); done

fuzz: $(READY) ## HOURS=h: run every fuzz target, memory bounded; or N times as many spoiled requests and parsers' inputs as `test`
ifdef HOURS
	@$(BIN)/python -m tests.fuzz.run --hours $(HOURS) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--target $(ONLY))
else
	@FUZZ=$(or $(N),50) SEED=$(SEED) $(BIN)/python -m pytest -q --timeout 3600 tests/fuzz tests/server/rest/test_schemathesis.py $(ARGS)
endif

crash: $(READY) ## kill the real engine N times beside an outside ledger; STATES=n: lose power, too
	@$(if $(STATES),$(BIN)/python -m tests.crash.states --states $(STATES) $(if $(SEED),--seed $(SEED)))
	@$(BIN)/python -m tests.crash.loop --cycles $(or $(N),300) $(if $(SEED),--seed $(SEED))

crash-server: $(READY) ## kill a server and its front ends, N times each, while its clients go on
	@$(BIN)/python -m tests.crash.served.loop --kills $(or $(N),30) $(if $(SEED),--seed $(SEED))

crash-lakes: $(READY) ## kill who carries rows into lakes, N times for each kind of table
	@KILLS=$(or $(N),100) SEED=$(or $(SEED),1) $(BIN)/python -m pytest -q tests/sinks/lakes/test_kills.py $(ARGS)

crash-pipeline: $(READY) ## kill pipelines N times, delete what they go on from; SINKS=all SERVER=1 SPARK=1 CLUSTER=1 KILLS=driver,zombie; ONLY=stream, redrive or totals
	@$(BIN)/python -m tests.pipeline.crash.$(or $(ONLY),loop) --rounds $(or $(N),50) $(if $(SEED),--seed $(SEED)) $(if $(SINKS),--sinks $(SINKS)) $(if $(KILLS),--kills $(KILLS)) $(if $(SERVER),--server) $(if $(SPARK),--spark) $(if $(CLUSTER),--cluster)

overload: $(READY) ## offer a server three times what it can do, for SECONDS
	@$(BIN)/python -m tests.server.load.overload --seconds $(or $(SECONDS),20)

soak: $(READY) ## have clients of every kind at a server for MINUTES: nothing may grow
	@$(BIN)/python -m tests.server.load.soak --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

hostile: $(READY) ## attack a server as one tenant for SECONDS, while another works: it must not notice
	@$(BIN)/python -m tests.server.hostile.run --seconds $(or $(SECONDS),60)

flips: $(READY) ## turn over every bit of a small folder (an hour); N=so many
	@$(BIN)/python -m tests.crash.flips $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED))

mutants: $(READY) ## break the source on purpose; the tests must notice every time
	@$(BIN)/python tests/mutants/run.py $(if $(ONLY),--only $(ONLY)) $(if $(PART),--part $(PART))

bench: $(READY) ## measure; ONLY=group, measurement or figure for some, by commas
	@$(BIN)/python bench/run.py $(if $(ONLY),--only $(ONLY))

bench-compare: $(READY) ## measure HEAD against BASE=revision in turns: ONLY=ids, ROUNDS=5
	@$(BIN)/python bench/compare.py --base $(BASE) --only $(ONLY) $(if $(ROUNDS),--rounds $(ROUNDS))

docs: $(READY) ## check the documents and show the next release's notes
	@$(BIN)/python -m pytest -q tests/test_tidy.py
	@$(BIN)/towncrier build --draft --version next

services: $(READY) ## fetch the servers and clients that tests run: PostgreSQL, Redis, OpenSearch, boto3 of old (`test` does it when needed)
	@$(BIN)/python -m tests.services

spark: $(READY) $(SPARK42)/.ready services ## run the tests of Spark alone, and once more on Spark 4.2, in an environment of its own
	@$(BIN)/python -m pytest -m spark tests $(ARGS)
	@$(SPARK42)/bin/python -m pytest -m spark tests/spark tests/pipeline tests/batch_jobs $(ARGS)

clients: $(READY) services ## have unchanged clients of AWS at a server: boto3, old and new, Celery, and all that takes longer
	@$(BIN)/python -m pytest -m "long or not long" tests/integration $(ARGS)

terraform: $(READY) ## have Terraform's AWS provider make, change and end queues and topics (ten minutes); PLUGINS=folder of another provider; MOTO=1: of moto, where it must see a difference
	@$(BIN)/python -m tests.integration.terraform $(if $(PLUGINS),--plugins $(PLUGINS)) $(if $(MOTO),--moto)

audit: $(READY) ## look for published vulnerabilities of every locked dependency
	@$(BIN)/python tools/audit.py

licences: $(READY) ## list the licence of every package that the product may install
	@$(BIN)/python tools/licences.py

lock: $(READY) ## resolve the dependencies anew and write all locks
	@$(BIN)/uv lock --quiet --default-index https://pypi.org/simple
	@$(BIN)/uv export --quiet --locked --default-index https://pypi.org/simple --format requirements-txt --all-extras --group dev --no-emit-project --no-annotate --no-header --output-file requirements.lock >/dev/null
	@$(BIN)/uv export --quiet --locked --default-index https://pypi.org/simple --format requirements-txt --extra cli --extra otel --extra server --no-dev --no-emit-project --no-annotate --no-header --output-file deploy/requirements.lock >/dev/null
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --default-index https://pypi.org/simple --generate-hashes --no-annotate --no-header --constraint <(sed -nE '/^pyspark==/d; s/^([a-z].*) \\$$/\1/p' requirements.lock) --extra cli --extra delta --extra iceberg --extra otel --extra postgres --extra redis --extra server --extra spark --extra sql --output-file tests/spark/spark42.lock pyproject.toml tests/spark/spark42.in >/dev/null
	@for lock in tests/integration/locks/*.in tools/locks/*.in; do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --default-index https://pypi.org/simple --generate-hashes --no-annotate --no-header --output-file $${lock%.in}.lock $$lock >/dev/null; done

clean: ## remove everything that was built, .venv included
	@rm -rf .venv .venv-audit $(SPARK42) build dist .hypothesis .ruff_cache .mypy_cache .pytest_cache
