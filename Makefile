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

.PHONY: help setup run serve test quick fmt lint types imports spelling sim properties fuzz crash crash-server crash-lakes crash-pipeline overload hostile soak flips mutants bench bench-compare bench-side-by-side docs check audit licences clients terraform lock services spark clean

help: ## show this list
	@printf 'Millrace: a durable message queue.\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make \033[1m%-18s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with all dependencies (other targets do it when needed)

$(READY): requirements.lock pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh
	@touch $@

$(SPARK42)/.ready: tests/spark/spark42.lock pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh $(SPARK42) tests/spark/spark42.lock
	@touch $@

run: $(READY) ## run the demonstration: embedded, through a server, and with Spark into a lake table
	@$(BIN)/python examples/demo.py
	@$(BIN)/python examples/lake.py

serve: $(READY) ## serve the folder millrace-data over HTTP, until Ctrl-C
	@$(BIN)/millrace serve $(ARGS)

test: check services ## run what CI runs: format, lint, types, import contracts, spelling, tests
	@$(BIN)/python -m pytest -n auto --no-loadscope-reorder tests $(ARGS)

quick: $(READY) ## run the tests that start no process and are not slow, in less than four minutes
	@$(BIN)/python -m pytest -n auto -m "not process and not slow and not long" tests $(ARGS)

fmt: $(READY) ## format the code and apply the linter's fixes
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

check: lint types imports spelling ## run the static checks of `test` without the tests

sim: $(READY) ## simulate crashes and faults: N=seeds, or SEED=one to replay
	@$(BIN)/python -m tests.support.simulator --seeds $(or $(N),200) $(if $(SEED),--seed $(SEED))

properties: $(READY) ## run the property tests with new random examples, N rounds
	@for round in $$(seq $(or $(N),10)); do $(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile search tests $(ARGS); done

fuzz: $(READY) ## HOURS=h: run every fuzz target with bounded memory; or N times as many mutated requests and parser inputs as `test`
ifdef HOURS
	@$(BIN)/python -m tests.fuzz.run --hours $(HOURS) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--target $(ONLY))
else
	@FUZZ=$(or $(N),50) SEED=$(SEED) $(BIN)/python -m pytest -q --timeout 3600 tests/fuzz tests/server/web/test_openapi_schemathesis.py $(ARGS)
endif

crash: $(READY) ## kill the real engine N times and compare with an external ledger; STATES=n: simulate power loss, too
	@$(if $(STATES),$(BIN)/python -m tests.crash.states --states $(STATES) $(if $(SEED),--seed $(SEED)))
	@$(BIN)/python -m tests.crash.loop --cycles $(or $(N),300) $(if $(SEED),--seed $(SEED))

crash-server: $(READY) ## kill a server and its front ends, N times each, under client load
	@$(BIN)/python -m tests.crash.served.loop --kills $(or $(N),30) $(if $(SEED),--seed $(SEED))

crash-lakes: $(READY) ## kill writers of Delta, Iceberg and Parquet tables, N times for each kind
	@KILLS=$(or $(N),100) SEED=$(or $(SEED),1) $(BIN)/python -m pytest -q tests/sinks/test_lake_kills.py $(ARGS)

crash-pipeline: $(READY) ## kill pipelines N times, delete their checkpoints and cursors; SINKS=all SERVER=1 SPARK=1 CLUSTER=1 KILLS=driver,zombie; ONLY=stream, redrive or totals
	@$(BIN)/python -m tests.pipeline.crash.$(or $(ONLY),loop) --rounds $(or $(N),50) $(if $(SEED),--seed $(SEED)) $(if $(SINKS),--sinks $(SINKS)) $(if $(KILLS),--kills $(KILLS)) $(if $(SERVER),--server) $(if $(SPARK),--spark) $(if $(CLUSTER),--cluster)

overload: $(READY) ## load a server with three times its throughput, for SECONDS
	@$(BIN)/python -m tests.server.load.overload --seconds $(or $(SECONDS),20)

soak: $(READY) ## run clients of every kind against a server for MINUTES: memory, descriptors and disk may not grow
	@$(BIN)/python -m tests.server.load.soak --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

hostile: $(READY) ## attack a server as one tenant for SECONDS: another tenant's messages and latency must not suffer
	@$(BIN)/python -m tests.server.hostile.run --seconds $(or $(SECONDS),60)

flips: $(READY) ## flip every bit of a small folder (an hour); N=number of sampled flips
	@$(BIN)/python -m tests.crash.flips $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED))

mutants: $(READY) ## mutation tests: break the source on purpose; the tests must fail for every mutant
	@$(BIN)/python tests/mutants/run.py $(if $(ONLY),--only $(ONLY)) $(if $(PART),--part $(PART))

bench: $(READY) ## run the benchmarks; ONLY=groups, measurements or figures, separated by commas
	@$(BIN)/python bench/run.py $(if $(ONLY),--only $(ONLY))

bench-compare: $(READY) ## benchmark HEAD against BASE=revision[,revision] in turns: ONLY=ids, ROUNDS=5
	@$(BIN)/python bench/compare.py --base $(BASE) --only $(ONLY) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-side-by-side: $(READY) ## load servers of HEAD and of BASE=revision[,revision] in short turns: ONLY=sqs_single,sqs_batch,rest_single, TURNS=12
	@$(BIN)/python bench/side_by_side.py --base $(BASE) $(if $(ONLY),--only $(ONLY)) $(if $(TURNS),--turns $(TURNS))

docs: $(READY) ## check the documents and show the next release's notes
	@$(BIN)/python -m pytest -q tests/test_tidy.py
	@$(BIN)/towncrier build --draft --version next

services: $(READY) ## fetch servers and clients for the tests: PostgreSQL, Redis, OpenSearch, an old boto3 (`test` does it when needed)
	@$(BIN)/python -m tests.services

spark: $(READY) $(SPARK42)/.ready services ## run only the Spark tests, and again on Spark 4.2 in a separate environment
	@$(BIN)/python -m pytest -m spark tests $(ARGS)
	@$(SPARK42)/bin/python -m pytest -m spark tests/spark tests/pipeline tests/batch_jobs $(ARGS)

clients: $(READY) services ## run unmodified AWS clients against a server: boto3, old and new, Celery, and the long tests
	@$(BIN)/python -m pytest -m "long or not long" tests/integration $(ARGS)

terraform: $(READY) ## create, change and destroy queues and topics with Terraform's AWS provider (ten minutes); PLUGINS=folder of another provider; MOTO=1: against moto, where the plan must show a difference
	@$(BIN)/python -m tests.integration.terraform $(if $(PLUGINS),--plugins $(PLUGINS)) $(if $(MOTO),--moto)

audit: $(READY) ## check every locked dependency for published vulnerabilities
	@$(BIN)/python tools/audit.py

licences: $(READY) ## list the licences of all packages that the product may install
	@$(BIN)/python tools/licences.py

lock: $(READY) ## resolve the dependencies again and write all lock files
	@$(BIN)/uv lock --quiet --default-index https://pypi.org/simple
	@$(BIN)/uv export --quiet --locked --default-index https://pypi.org/simple --format requirements-txt --all-extras --group dev --no-emit-project --no-annotate --no-header --output-file requirements.lock >/dev/null
	@$(BIN)/uv export --quiet --locked --default-index https://pypi.org/simple --format requirements-txt --extra cli --extra otel --extra server --no-dev --no-emit-project --no-annotate --no-header --output-file deploy/requirements.lock >/dev/null
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --default-index https://pypi.org/simple --generate-hashes --no-annotate --no-header --constraint <(sed -nE '/^pyspark==/d; s/^([a-z].*) \\$$/\1/p' requirements.lock) --extra cli --extra delta --extra iceberg --extra otel --extra postgres --extra redis --extra server --extra spark --extra sql --output-file tests/spark/spark42.lock pyproject.toml tests/spark/spark42.in >/dev/null
	@for lock in tests/integration/locks/*.in tools/locks/*.in; do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --default-index https://pypi.org/simple --generate-hashes --no-annotate --no-header --output-file $${lock%.in}.lock $$lock >/dev/null; done

clean: ## remove all build output, including .venv
	@rm -rf .venv .venv-audit $(SPARK42) build dist .hypothesis .ruff_cache .mypy_cache .pytest_cache
