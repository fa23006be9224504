# Tidemark's commands. Each does its own set-up; nothing has to be installed first but make and some python3.
PYTHON3 ?= python3
PY := .venv/bin/python
UV := .venv/uv/bin/uv
COMPILE := pip compile -q --universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-emit-find-links

.PHONY: help demo up test lint bench test-vllm requirements env env-tests

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

demo: env ## everything on this machine with four simulated workers and replayed traffic; Ctrl-C ends it
	@exec $(PY) manage.py up --demo $(ARGS)

up: env ## everything on this machine, for your own vLLM workers
	@exec $(PY) manage.py up $(ARGS)

test: env-tests ## the whole test suite, then the database tests on PostgreSQL (ARGS="-k name" narrows it)
	@$(PY) -m tests $(ARGS)

lint: env-tests ## style, types, templates, missing migrations
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy router controlplane dashboard simulator
	$(PY) -m djlint templates --lint
	TIDEMARK_RUN_DIR=$$(mktemp -d) $(PY) manage.py makemigrations --check --dry-run

bench: env-tests ## every speed bar beside other proxies, one table (ARGS="--only decision,quality --rounds 2" narrows)
	@$(PY) -m benchmarks $(ARGS)

test-vllm: env-tests ## the router against two real vLLM workers on the CPU (first time: 5 min, 3.4 GB)
	@docker/lab/lab.sh install
	@trap 'docker/lab/lab.sh down' EXIT; docker/lab/lab.sh up 2 && $(PY) -m pytest -m vllm tests/exact tests/vllm $(ARGS)

requirements: env ## compile the pinned, hashed requirement files anew
	@test -x $(UV) || ($(PY) -m venv .venv/uv && .venv/uv/bin/python -m pip install -q uv)
	$(UV) $(COMPILE) docker/requirements.in -o requirements.txt
	$(UV) $(COMPILE) tests/requirements.in -c requirements.txt -o tests/requirements.txt

env:
	@$(PYTHON3) docker/bootstrap.py

env-tests:
	@$(PYTHON3) docker/bootstrap.py --tests
