# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help demo test lint bench clean

help:
	@echo "make demo    set up and run the quickstart notebook on four real clients"
	@echo "make test    set up, check style and types, and run all tests"
	@echo "make bench   set up and measure starts, cells, recovery and values beside their peers"
	@echo "make clean   remove what these made"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "dtensor_magic needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu,examples]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu,test]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu,bench]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/python examples/run.py examples/quickstart.ipynb

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/cell.py
	$(BIN)/python benchmarks/recover.py
	$(BIN)/python benchmarks/values.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
