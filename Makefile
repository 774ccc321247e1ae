# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Colab's versions, for the tests that run a kernel on them.
COLAB ?= .venv-colab

.PHONY: help demo test lint bench chromium colab clean

help:
	@echo "make demo    set up and run the quickstart notebook on four real clients"
	@echo "make test    set up (chromium and Colab's versions too), check style and types, and run all tests"
	@echo "make bench   set up and measure starts, cells, recovery, values and the panel"
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

$(COLAB)/.made: tests/colab.txt pyproject.toml
	$(PYTHON) -m venv $(COLAB)
	$(COLAB)/bin/python -m pip install --quiet --disable-pip-version-check --constraint tests/colab.txt --editable '.[cpu]'
	@touch $@

$(VENV)/.bench: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu,bench]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/python examples/run.py examples/quickstart.ipynb

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

chromium:
	.ci/chromium

colab: $(COLAB)/.made

test: lint chromium colab
	DTENSOR_MAGIC_COLAB_PYTHON='$(abspath $(COLAB))/bin/python' $(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/cell.py
	$(BIN)/python benchmarks/recover.py
	$(BIN)/python benchmarks/panel.py
	$(BIN)/python benchmarks/values.py

clean:
	rm -rf $(VENV) $(COLAB) .mypy_cache .pytest_cache .ruff_cache .hypothesis
