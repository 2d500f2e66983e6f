# Two commands: `make launch` trains the example job, `make test` runs all that CI checks.
# Each sets up `.venv` first (infra/setup.sh). `make chaos` is the long kill matrix, then a swarm.

JOB ?= examples/gpt-local.toml
BIN := .venv/bin

.PHONY: launch test chaos setup
.DEFAULT_GOAL := launch

launch: setup
	$(BIN)/bamboo launch $(JOB)

test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal --durations=15

chaos: setup
	$(BIN)/pytest -m full --durations=15
	$(BIN)/bamboo chaos examples/chaos-local.toml --minutes 10

setup:
	@PYTHON="$(PYTHON)" infra/setup.sh
