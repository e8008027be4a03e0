# Everything a newcomer types. Each target sets up what it needs; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup run test check format bench chaos test-clients wheel clean

PY := .venv/bin/python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Installed again only when the locked versions or the package's metadata change.
.venv/.installed: requirements.lock pyproject.toml
	@scripts/setup

setup: .venv/.installed ## make .venv with the locked packages

run: .venv/.installed ## the fire alarm: broker, sensors, Spark pipeline, live view
	@$(PY) -m penstock.cli demo $(ARGS)

test: .venv/.installed ## everything that must be green (minutes)
	@$(PY) -m pytest $(ARGS)

check: .venv/.installed ## style, types and layers (seconds)
	@$(PY) -m ruff check src tests examples benchmarks chaos
	@$(PY) -m ruff format --check src tests examples benchmarks chaos
	@$(PY) -m mypy
	@.venv/bin/lint-imports

format: .venv/.installed ## let ruff lay out the code
	@$(PY) -m ruff check --fix --quiet src tests examples benchmarks chaos
	@$(PY) -m ruff format --quiet src tests examples benchmarks chaos

bench: .venv/.installed ## the benchmarks, each with its ratio against a named peer
	@for file in benchmarks/*.py; do echo "== $$file"; $(PY) $$file $(ARGS) || exit 1; done

chaos: .venv/.installed ## long runs: 1,000 kills, 100,000 power losses
	@for file in chaos/*.py; do echo "== $$file"; $(PY) $$file $(ARGS) || exit 1; done

test-clients: .venv/.installed ## kcat and kafkajs against the embedded broker (installs both)
	@tests/clients/run

wheel: .venv/.installed ## build the package into dist/
	@$(PY) -m build --wheel --no-isolation --outdir dist .

clean: ## remove the environment and what was built
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
