# `make demo` and `make test` need only Python 3.11+, make and a package registry: both set up first.

PYTHON ?= python3
ACCEL  ?= auto
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --constraint constraints.txt
# One stamp for each ACCEL: asking for another build sets up again.
READY  := $(VENV)/.ready-$(ACCEL)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-long prove audit browser screenshots measure-studio check format wheel clean

help:  ## show this list
	@echo "make TARGET [PYTHON=python3] [ACCEL=auto|cpu|cuda]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1@\2/p' Makefile | awk -F@ '{ printf "  %-15s %s\n", $$1, $$2 }'

setup: $(READY)  ## install everything into .venv (once)

$(READY): pyproject.toml constraints.txt scripts/install-torch
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Glassformer needs Python 3.11 or newer; $(PYTHON) is not. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "==> $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> PyTorch"
	@sh scripts/install-torch $(BIN)/python $(ACCEL)
	@echo "==> everything else (about a minute)"
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable '.[all,dev]'
	@# pip compiles on one core; some packages ship test files that are not meant to compile.
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true
	@rm -f $(VENV)/.ready-*
	@touch $@
	@echo "==> ready: $(BIN)/glassformer --help"

DEMO := runs/demo

demo: setup  ## set up, train the reversal model, leave a picture of its attention
	@rm -rf $(DEMO)
	$(BIN)/glassformer train reversal --run $(DEMO)
	$(BIN)/glassformer attention $(DEMO) --out $(DEMO)/attention.png
	@echo "==> the picture: $(DEMO)/attention.png"

# Small matrices are faster with one thread, and each of the two workers has a core to itself.
test test-all test-long prove: export OMP_NUM_THREADS = 1
PYTEST := $(BIN)/python -m pytest

test: setup  ## set up, then run the tests of every day (under 5 minutes on two cores)
	@$(PYTEST) -n 2 --dist loadscope

# A browser is looked for first: without one the tests of the pages are skipped with the reason; with CI=true they fail.
test-all: setup browser  ## run what `make test` leaves out: faults, browser tours, slow equivalences (8 minutes)
	@$(PYTEST) -n 2 --dist loadfile -m "thorough and not long"

test-long: setup  ## run the longest checks, write docs/results/test-long.json (5 minutes)
	@$(BIN)/python scripts/test-long -n 2

TIER ?= quick
JOBS ?= 2

prove: setup  ## run the fault programme (TIER=quick|full, JOBS=2), write docs/results/reliability.md
	@$(BIN)/python scripts/prove --tier $(TIER) --jobs $(JOBS)

audit: setup  ## compare the versions of constraints.txt with the package index
	@$(BIN)/python scripts/audit

browser:
	@sh scripts/find-browser > /dev/null || true

screenshots: setup browser  ## train small models, open every view of the studio, write docs/images/studio-*.png
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/screenshots

measure-studio: setup browser  ## measure the studio in a browser (quiet machine), write docs/results/studio.*
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/measure-studio

check: setup  ## lint, format, types, import contract
	@echo "==> ruff" && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "==> mypy" && $(BIN)/mypy
	@echo "==> import contract" && $(BIN)/lint-imports --no-logo
	@echo "==> map of the code" && $(BIN)/python scripts/write-map --check
	@echo "==> page of all options" && $(BIN)/python scripts/write-options --check
	@echo "==> tables of the exports" && $(BIN)/python scripts/write-exports --check

format: setup  ## format the code and sort its imports
	@$(BIN)/ruff check --fix-only . && $(BIN)/ruff format .

wheel: setup  ## build the wheel and the sdist into dist/
	@$(BIN)/python -m build --no-isolation

clean:  ## remove what was built and .venv; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
