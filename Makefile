# Deltaworks: `make demo` shows it, `make test` proves it. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DOCS_ENV := .deltaworks/docs-env
# The environment: what the product needs, then what the sandbox and the work on it add.
LOCKS := requirements.lock requirements-sandbox.lock requirements-dev.lock
export PYTHONPATH := $(CURDIR)/include
export TZ := UTC
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYTHONDONTWRITEBYTECODE :=
COMPILE := $(BIN)/uv pip compile --python-version 3.11 --generate-hashes --quiet --custom-compile-command "make lock"
# Locks what the file $(1).txt adds to the locks $(2), whose versions it keeps. uv lists at the end what it left out.
lock_addition = $(COMPILE) $(1).txt $(addprefix --constraint ,$(2)) --output-file $(1).lock \
	$$(sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p' $(2)) \
	&& sed -i.all '/^$$/,$$d' $(1).lock && rm $(1).lock.all
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help doctor env jars jarlock lock secrets containers images audit lambda demo up down status test unit spark dags lint fmt types tables docs screenshots integration faults soak hostile fuzz bench clean

help: ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

doctor: ## say what this machine lacks, with the command that installs it
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or name one with make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m sandbox.doctor

# A checkout makes the lock files newer and mostly leaves their content: the stamp holds what was installed.
$(VENV)/.stamp: requirements-uv.lock $(LOCKS)
	@set -e; \
	if test -x $(BIN)/python && cat $^ | cmp -s - $@; then touch $@; exit; fi; \
	command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or name one with make PYTHON=/path/to/python3.11"; exit 1; }; \
	echo "==> environment: making $(VENV) what the lock files say (about a minute)"; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement requirements-uv.lock; \
	$(BIN)/uv pip sync --quiet --require-hashes --python $(BIN)/python $(LOCKS); \
	cat $^ > $@

env: $(VENV)/.stamp ## create the environment from the lock files (once)
	@:

jars: env ## resolve the jars and compile the Java classes (once)
	@$(RUN) -m deltaworks.build.jars

jarlock: env ## resolve the jars anew and record their digests in include/jars/jars.lock
	@$(RUN) -m deltaworks.build.jars --record

lock: env ## resolve the requirements files anew into their lock files
	@$(COMPILE) requirements.txt --output-file requirements.lock
	@$(call lock_addition,requirements-sandbox,requirements.lock)
	@$(call lock_addition,requirements-dev,requirements.lock requirements-sandbox.lock)
	@$(call lock_addition,requirements-kubernetes,requirements.lock)
	@grep '^uv==' requirements-dev.txt | $(COMPILE) - --no-deps --no-annotate --output-file requirements-uv.lock
	@$(COMPILE) docs/requirements.txt --output-file docs/requirements.lock

secrets: ## make the secrets of the containers, in docker/secrets; what is there stays
	@$(PYTHON) docker/make_secrets.py

containers: secrets ## build the containers and start them with their local servers, on this machine alone
	@docker compose build && docker compose --profile local up --detach

images: env ## ask the registries for the digests of all images and put them behind their tags
	@$(RUN) -m sandbox.supply_chain.images

audit: env ## ask a vulnerability service about every locked package (SERVICE=osv for another one)
	@$(RUN) -m sandbox.supply_chain.audit $(if $(SERVICE),--service $(SERVICE))

lambda: env ## pack the collector as an AWS Lambda into dist/collector-lambda.zip, byte for byte the same each time
	@$(RUN) -m sandbox.supply_chain.lambda_package

demo: env ## run pipelines end to end and compare every result with the expected one (ALL=1 for all, PIPELINES=names to choose)
	@$(RUN) -m deltaworks.build.jars --broker
	@$(RUN) -m deltaworks.cli demo $(if $(ALL),--all) $(if $(PIPELINES),--pipelines $(PIPELINES)) $(if $(EVENTS),--events "$(EVENTS)") $(DEMO)

up: jars ## start the embedded stack and keep it running
	@$(RUN) -m deltaworks.cli up

down: env ## stop the embedded stack; `make up` goes on where it was
	@$(RUN) -m deltaworks.cli down

status: env ## show what runs
	@$(RUN) -m deltaworks.cli status

test: env ## everything a submission must pass (TESTS=path for some, one behind the other)
	@$(RUN) -m deltaworks.build.jars --without-archive
	@$(RUN) -m $(if $(TESTS),pytest $(TESTS),tests.lanes)

unit: env ## the fast tests: no JVM
	@$(RUN) -m pytest tests/unit

spark: jars ## the tests on a local Spark session
	@$(RUN) -m pytest tests/spark

dags: env ## the tests of the DAGs
	@$(RUN) -m pytest tests/dags

integration: jars ## the long tests: Airflow's own processes, Spark clusters, every source against its server, many writers
	@$(RUN) -m pytest -m integration $(TESTS)

faults: jars ## kill real processes and check that nothing is lost or doubled (ONLY=words to select tests)
	@$(RUN) -m pytest -m faults --durations=0 $(if $(ONLY),-k "$(ONLY)") $(or $(TESTS),tests/faults)

soak: jars ## disturb a loaded stream at random for MINUTES=20 and check its rows (MAINTENANCE=1: with concurrent maintenance; HOSTILE=1: with a hostile producer; COLLECTOR=1: a collector at twice the capacity of its sink; PRIVACY=1: erase REQUESTS=20 people from ROWS=1000000 rows)
	@$(RUN) -m tests.faults.$(if $(PRIVACY),privacy_,$(if $(MAINTENANCE),maintenance_,$(if $(HOSTILE),hostile_,$(if $(COLLECTOR),collector_))))soak $(if $(PRIVACY),--rows $(or $(ROWS),1000000) --requests $(or $(REQUESTS),20),--minutes $(or $(MINUTES),$(if $(MAINTENANCE)$(HOSTILE),10,20))) $(SOAK)

hostile: env ## 1,000 hostile connections beside honest clients of a collector for MINUTES=10 (OFF=bounds to take away; it must then fail)
	@$(RUN) -m tests.hostile --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(OFF),--off $(OFF)) $(HOSTILE)

fuzz: env ## feed the product damaged and hostile input for MINUTES=10 (SEED=n repeats a run, ONLY=json,csv selects targets)
	@$(RUN) -m tests.fuzz --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(FUZZ)

bench: jars ## side-by-side measurements (ONLY=name for one)
	@$(RUN) -m benchmarks $(if $(ONLY),--only $(ONLY)) $(BENCH)

lint: env ## style and layers
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-cache

fmt: env ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

types: env ## mypy, strict
	@$(BIN)/mypy

tables: env ## write what the docs hold of the code: conditions, alerts, metrics, the Grafana dashboard
	@$(RUN) -m deltaworks.errors.docs_tables docs
	@$(RUN) -m deltaworks.metrics.grafana docs
	@$(RUN) -m deltaworks.cli.docs_tables docs

$(DOCS_ENV)/.stamp: docs/requirements.lock
	@test -x $(DOCS_ENV)/bin/python || $(PYTHON) -m venv $(DOCS_ENV)
	@$(BIN)/uv pip sync --quiet --require-hashes --python $(DOCS_ENV)/bin/python docs/requirements.lock
	@touch $@

docs: tables $(DOCS_ENV)/.stamp ## build the docs as a site in dist/site, every link checked; search runs in the browser
	@NO_MKDOCS_2_WARNING=1 $(DOCS_ENV)/bin/mkdocs build --quiet && echo "dist/site/index.html"

screenshots: jars ## take pictures of the console's pages, light and dark, into docs/screenshots (needs Debian's chromium)
	@$(RUN) -m tests.screenshots

clean: ## remove everything that was fetched, built or written here
	rm -rf $(VENV) .deltaworks include/jars/target
