# Two commands do everything on a fresh Debian machine: `make demo` and `make test`.
# Each sets up what it needs first; set-up is a stamp file, so the second time costs nothing.

SHELL := bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests wait for disks, clients and a JVM half of the time: one more of them than processors.
WORKERS ?= $(shell echo $$(( $$(nproc) + 1 )))

.PHONY: help setup java clients browser proxy etcd demo test test-fast test-long planted check format bench docs docs-site wheel clean

help: ## Show what there is to do.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## Make .venv and install the project into it.

$(STAMP): pyproject.toml tools/setup
	@tools/setup "$(PYTHON)" "$(VENV)"
	@touch $@

java: ## Install the Java that Spark runs on, where there is none.
	@tools/setup-java

clients: ## Install the Kafka clients of other languages that the tests use.
	@tools/setup-clients

browser: ## Install the browser that the tests use, where there is none.
	@tools/setup-browser

proxy: ## Install the proxy that the tests use, if it is missing.
	@tools/setup-proxy

etcd: ## Install the etcd that the tests and a cluster for development use, if it is missing.
	@tools/setup-etcd

demo: setup java etcd ## A node, a crash, a pipeline on Spark, a query, a cluster: the story, step by step.
	@$(BIN)/python examples/demo

test: setup java clients browser proxy etcd ## Run all tests, and print the slowest.
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 30 $(ARGS)

test-fast: setup ## Run the tests of pure code, storage, broker and in-process servers: four minutes.
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(ARGS)

test-long: setup java clients browser proxy etcd ## Run the campaigns that take longer than CI may.
	@MILLSTREAM_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --timeout 7200 $(ARGS)

planted: setup java clients browser proxy etcd ## Plant each known bug and show that the suite catches it.
	@$(BIN)/python tests/planted/plant.py $(ARGS)

check: setup ## Lint, types, imports.
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: setup ## Lay out the code as `make check` wants it.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup java ## Measure every claim, beside limits and peers. SUBJECT=log PEERS=none QUICK=1 narrow it.
	@tools/setup-peers "$(or $(PEERS),all)"
	@$(BIN)/python benchmarks/run.py $(if $(SUBJECT),--subject $(SUBJECT)) $(if $(PEERS),--peers $(PEERS)) $(if $(QUICK),--quick)

docs: setup ## Regenerate what is made from code: pages of docs/reference, the blocking client.
	@$(BIN)/python tools/generate_sync_client.py
	@$(BIN)/python tools/generate_docs.py

docs-site: setup ## Build the documentation site into build/site; a warning is an error.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: setup ## Build the wheel and the sdist into dist.
	@$(BIN)/python -m build --no-isolation --outdir dist

clean: ## Remove what the other commands made.
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
