# Every command of the project. `make` alone lists them; each does its own set-up on a machine that has Python 3.11 and make.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
.DEFAULT_GOAL := help
.PHONY: help setup demo test sim chaos bench mutants repeat check docs

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.packages .venv/.tools ## virtual environment from the lock file, and the Debian tools that tests use

.venv/.packages: requirements.lock pyproject.toml scripts/setup
	@scripts/setup packages
	@touch $@

.venv/.tools: scripts/setup | .venv/.packages
	@scripts/setup tools
	@touch $@

demo: .venv/.packages ## a live shop database and a producer into three brokers; kill reader and leader, see that nothing is lost
	@$(BIN)/millrace demo

test: setup check ## all checks and tests, as CI runs them
	$(PYTEST) -q -n 2 -m "not long" tests/unit $(wildcard tests/sim)
	$(PYTEST) -q -n 2 -m "not long" --dist=worksteal tests/fuzz
	$(PYTEST) -q -n 2 -m "not long" tests/source
	$(PYTEST) -q -m "not long" --ignore=tests/unit --ignore=tests/sim --ignore=tests/source --ignore=tests/spark --ignore=tests/fuzz tests
	$(PYTEST) -q -m "not long" tests/spark

sim: .venv/.packages ## long simulation: 20,000 machine seeds, 1,000 seeds of the whole shell, 5,000 of a source, 10,000 of control, 2,000 of take-over
	$(BIN)/python -m millrace_sim.machines --seeds 20000 --jobs 2
	$(BIN)/python -m millrace_sim.shell --seeds 1000 --jobs 2
	$(BIN)/python -m millrace_sim.source --seeds 5000
	$(BIN)/python -m millrace_sim.control --seeds 10000 --jobs 2
	$(BIN)/python -m millrace_sim.takeover --seeds 2000 --jobs 2

chaos: setup ## long tests with real processes on the disk: kills and pauses under load, ten times each
	MILLRACE_TEST_DIR=/tmp $(PYTEST) -q -m long --timeout=0 tests/process tests/clients tests/source tests/spark tests/fuzz

bench: .venv/.packages ## measure the log, PostgreSQL into the log and into topics, many partitions, many tables, copies of small tables; writes docs/benchmarks/
	$(BIN)/millrace bench log
	$(BIN)/millrace bench source --peer debezium
	$(BIN)/millrace bench pipeline --peer debezium
	$(BIN)/python tests/perf/bench_scale.py
	$(BIN)/python tests/perf/bench_changefeeds.py
	$(BIN)/python tests/perf/bench_small_tables.py

mutants: setup ## plant flaws one by one, see whether the tests near them find them; ROOM=log for one room; writes docs/benchmarks/mutants.md
	$(BIN)/python scripts/mutants.py $(if $(ROOM),--room $(ROOM)) --jobs 2

repeat: setup ## unit tests and simulation N=20 times, every second time beside BUSY=4 busy processes; says which tests failed
	scripts/repeat $(or $(N),20) $(or $(BUSY),4)

check: setup ## lint, types, import rules, alert rules
	$(BIN)/ruff check src tests examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	promtool check rules src/millrace/alerts/*.rules.yaml
	promtool test rules src/millrace/alerts/*.test.yaml

docs: .venv/.packages ## write the reference pages that are made from the code
	$(BIN)/python scripts/make_docs.py
