# `make launch` trains the example job, `make test` runs all that CI checks, and `make check` what of
# it takes no minutes: style, types, the floor plan, and the tests that start no processes.
# `make swarm` plays seeded orders of faults against the decision core, SEEDS of them, and looks for
# bugs that are planted in it. `make terraform-e2e` applies terraform/ to a mock account, trains a run
# on it and destroys it; it needs terraform, and a provider (BAMBOO_TERRAFORM_PLUGIN_DIR).
# `make redis-e2e` plays runs against Debian's Redis over TLS, and
# `make fuzz` reads CASES malformed inputs of each kind.
# `make bench` measures (benchmarks/README.md), all or `PARTS="executor failover"`.
# `make mutants` plays the tests of `bamboo/core` against COUNT mutants of it, drawn by SEED,
# without tests that take more than TEST_S CPU seconds.
# `make gpu-check PART=bits` checks a machine with a card by PYTHON, without a set-up
# (benchmarks/gpu_check/README.md).
# `make trackers` installs wandb and mlflow too, 120 MB, and reads back what was logged to them.
# Each other one sets up `.venv` first (infra/setup.sh). `make chaos` is the long kill matrix, then a swarm.

JOB ?= examples/gpt-local.toml
SEEDS ?= 20000
CASES ?= 10000
SEED ?= 1
COUNT ?= 150
PART ?= facts
UNITS := $(addprefix tests/,core coord schedule planner topology config telemetry data models billing tidy)
BIN := .venv/bin
# A run is a dozen processes: compiled modules are kept, whatever the surroundings say.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: launch check style types units test suite chaos swarm terraform-e2e redis-e2e fuzz mutants bench gpu-check trackers setup
.DEFAULT_GOAL := launch

launch: setup
	$(BIN)/bamboo launch $(JOB)

check: setup style
	@$(MAKE) --no-print-directory -j 2 types units

test: setup style
	@$(MAKE) --no-print-directory -j 2 types suite

# Tests wait a third of their time for processes, so there are more of them at once than cores.
suite: setup
	$(BIN)/pytest -n 5 --dist worksteal --durations=15

style: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

units: setup
	$(BIN)/pytest -n 2 -m "not e2e and not full" $(UNITS)

chaos: setup
	$(BIN)/pytest -m full --durations=15
	$(BIN)/bamboo chaos examples/chaos-local.toml --minutes 10

swarm: setup
	$(BIN)/python -m testbed.swarm $(SEEDS)
	$(BIN)/pytest -m full tests/sim/swarm

terraform-e2e: setup
	$(BIN)/pytest -m full tests/infra/test_terraform_lost_answers.py tests/infra/test_terraform_launch.py

redis-e2e: setup
	infra/redis_server.sh
	BAMBOO_REDIS_E2E=1 $(BIN)/pytest -m "full or not full" -k "tls or acl or address" \
		tests/contracts/test_store.py tests/coord tests/launches/test_tls_launch.py

fuzz: setup
	BAMBOO_FUZZ_CASES=$(CASES) $(BIN)/pytest -n 2 -m "full or not full" tests/fuzz

mutants: setup
	$(BIN)/python -m benchmarks.mutants_of_core --seed $(SEED) --count $(COUNT) $(if $(TEST_S),--test-s $(TEST_S))

trackers: setup
	$(BIN)/python -m pip -q install --constraint constraints.txt --editable '.[wandb,mlflow]'
	$(BIN)/pytest -m "full or not full" tests/trackers

bench: setup
	$(BIN)/python -m benchmarks $(PARTS)

gpu-check:
	$(or $(PYTHON),$(if $(wildcard $(BIN)/python),$(BIN)/python,python3)) \
		-m benchmarks.gpu_check --part $(PART) $(ARGS)

setup:
	@PYTHON="$(PYTHON)" infra/setup.sh
