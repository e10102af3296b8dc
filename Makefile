# Targets run in .venv, which is created from requirements/*.lock when it is missing or out of date.
# Requires Python 3.11 or newer, and make.
#
#   make test PYTHON=python3.13     use another Python; .venv is created again
#   make test VENV=.venv-3.13       use another directory, to keep several environments

VENV ?= .venv
FUZZ_SECONDS ?= 60
SEEDS ?= 20000
HOSTILE_SECONDS ?= 600
# Two more than the number of cores: tests that start processes mostly wait.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed
FUZZ_INSTALLED := $(VENV)/.fuzz-installed
BENCH_INSTALLED := $(VENV)/.bench-installed
COMPILED := build/compiled/.stamp
JAVA := build/java/.stamp

# Tests start hundreds of processes, which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

CODE := $(wildcard src tests bench examples tools setup.py)
SOURCES := $(shell find src/aqueduct -name '*.py')
# -qq prints errors only.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
# Pinned, because the format of the locks depends on the version.
UV := uv==0.13.7

# Shell code that sets $$python, or exits with a message that says what is missing.
PYTHONS := $(if $(PYTHON),'$(PYTHON)',python3 python3.14 python3.13 python3.12 python3.11 python)
define FIND_PYTHON
found=; for python in $(PYTHONS); do \
	if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
		>/dev/null 2>&1; then found=yes; break; fi; \
done; \
if [ -z "$$found" ]; then \
	echo "No Python 3.11 or newer with venv and ensurepip was found; looked for: $(PYTHONS)" >&2; \
	echo "Name one with: make setup PYTHON=/path/to/python3" >&2; \
	exit 1; \
fi
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test soak check bench fuzz compile lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(INSTALLED)  ## create .venv from the lock and install the project into it

demo: $(INSTALLED)  ## run a pipeline: devices, channels, ingest, Spark, tables and a report
	@rm -rf build/demo
	@$(BIN)/aqueduct pipeline --duration 20 --rate 5000 --out build/demo

test: $(INSTALLED)  ## run check and all tests at the same time
	@mkdir -p build; ( $(MAKE) --no-print-directory check > build/check.log 2>&1; \
		status=$$?; echo; cat build/check.log; exit $$status ) & check=$$!; \
	$(MAKE) --no-print-directory $(JAVA); \
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup; tests=$$?; \
	wait $$check || { cat build/check.log; echo "make test: check has failed"; exit 1; }; \
	exit $$tests

soak: $(INSTALLED)  ## run SEEDS (20000) simulations per protocol, attacks, leak, loss and crash tests; 40 minutes
	for protocol in channels ipc; do $(BIN)/python -m aqueduct.testing.simulate \
		--protocol $$protocol --seeds 0:$(SEEDS) --jobs $$(getconf _NPROCESSORS_ONLN) || exit 1; done
	$(BIN)/python -m tests.hostile.campaign --soak --seconds $(HOSTILE_SECONDS)
	PARITY_SEEDS=$$(($(SEEDS) / 10)) $(BIN)/python -m pytest -n $(WORKERS) tests/transport/quic/test_parity.py \
		tests/transport/tcp/test_parity.py
	COMPLEXITY_CHANNELS=100000 LEAK_ROUNDS=$$(($(SEEDS) / 20)) $(BIN)/python -m pytest \
		tests/protocol/test_complexity.py tests/protocol/test_depth.py tests/api/test_leaks.py
	JOB_ROWS=$$(($(SEEDS) * 100)) $(BIN)/python -m pytest tests/ingest/test_job_growth.py
	SURVIVAL_SEEDS=$$(($(SEEDS) / 100)) $(BIN)/python -m pytest -n $(WORKERS) tests/transport/quic/test_survival.py
	CRASH_CHAINS=$$(($(SEEDS) / 1000)) $(BIN)/python -m pytest -n $(WORKERS) tests/ingest/test_crashes.py
	CRASH_ROUNDS=$$(($(SEEDS) / 200)) CRASH_SEED=$(SEEDS) $(BIN)/python -m pytest tests/spark/crashes

check: $(INSTALLED)  ## check style, types and import rules
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy --strict $(CODE)
	$(BIN)/lint-imports --no-logo

bench: $(BENCH_INSTALLED)  ## measure the core, then channels, many, paths, ScalableIPC, ingest and Spark against peers; 50 minutes
	@$(BIN)/python -m bench core
	@$(BIN)/python -m bench channels
	@$(BIN)/python -m bench many
	@$(BIN)/python -m bench paths
	@$(BIN)/python -m bench ipc
	@$(BIN)/python -m bench ingest
	@$(BIN)/python -m bench spark

fuzz: $(FUZZ_INSTALLED)  ## fuzz for FUZZ_SECONDS (60); Linux on x86-64 only
	@$(BIN)/python -c 'import atheris' 2>/dev/null || { \
		echo "make fuzz: the fuzzer, atheris, exists for CPython on Linux x86-64 only." >&2; exit 1; }
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python tests/fuzz/fuzz.py -max_total_time=$(FUZZ_SECONDS)

compile: $(COMPILED)  ## compile the hot path to C, into build/compiled

lock:  ## write requirements/*.lock again; UPGRADE=1 takes the newest versions
	@$(FIND_PYTHON); test -x build/lock/bin/uv || { echo "lock: installing $(UV) into build/lock"; \
		"$$python" -m venv --clear build/lock && build/lock/bin/python -m pip -qq install $(UV); }
	@build/lock/bin/python tools/lock.py build/lock/bin/uv $(if $(UPGRADE),--upgrade)

clean:  ## remove .venv and all build output
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf src/*.egg-info
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

# PYTHON differs from the one that .venv was created with: create .venv again.
ifdef PYTHON
ifneq ($(PYTHON),$(shell cat $(VENV)/.made-with 2>/dev/null))
.PHONY: $(LOCKED)
endif
endif

$(LOCKED): requirements/dev.lock
	@$(FIND_PYTHON); echo "setup: creating $(VENV) with $$("$$python" --version) ($$python)"; \
		rm -rf $(VENV) && "$$python" -m venv $(VENV)
	@echo "setup: installing requirements/dev.lock"
	@$(PIP) install --require-hashes -r requirements/dev.lock
	@echo '$(PYTHON)' > $(VENV)/.made-with
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml
	@echo "setup: installing the project"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(FUZZ_INSTALLED): $(INSTALLED) requirements/fuzz.lock
	@echo "setup: installing requirements/fuzz.lock"
	@$(PIP) install --require-hashes -r requirements/fuzz.lock
	@touch $@

$(BENCH_INSTALLED): $(INSTALLED) requirements/bench.lock
	@echo "setup: installing requirements/bench.lock"
	@$(PIP) install --require-hashes -r requirements/bench.lock
	@touch $@

# The classes that the JVMs of the tests share.
$(JAVA): $(INSTALLED) tests/java.py
	@$(BIN)/python -m tests.java > /dev/null 2>&1 || echo "make test: Spark's tests start slowly, because" \
		"no class archive could be made: $(BIN)/python -m tests.java"
	@touch $@

$(COMPILED): $(INSTALLED) $(SOURCES) setup.py tools/compile.py
	@$(BIN)/python tools/compile.py
	@touch $@
