# Every target makes its own .venv on first use (standard venv and pip) and reuses it afterwards.
# Only Python 3.11 or newer and make are needed:
#   make demo    train on dates, show answers and the alignment picture
#   make test    the whole test suite
#   make check   ruff and mypy
#   make prove   every law for every system, and the long experiments; writes docs/PROOFS.md
#   make bench   speed against installed peers; writes bench/RESULTS.md
#   make docs    regenerate docs/systems.md, docs/parts.md and the pictures

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# The constraint pins torch for everything pip does here; 2.13.0 takes the CPU build where one is offered.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1

# Two workers with one thread each are faster here than one worker with two threads.
WORKERS ?= 2
TESTS   ?= tests

.PHONY: demo test check format prove bench docs clean
.DEFAULT_GOAL := test

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "regard needs Python 3.11 or newer, and this is %d.%d: make PYTHON=python3.11 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt regard/native/kernels.c | $(BIN)/python
	@echo "installing into $(VENV), once: some minutes"
	$(BIN)/python -m pip install --quiet -e '.[dev,plot]'
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python -m pip install --quiet --no-deps joeynmt==2.3.0  # it asks for an old protobuf, and linters
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/regard demo

test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) $(TESTS)

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

prove: $(VENV)/.installed
	$(BIN)/regard prove --out docs/PROOFS.md
	$(BIN)/python -m pytest -q -m prove --timeout 7200 tests

bench: $(VENV)/.bench
	$(BIN)/python bench/page.py

docs: $(VENV)/.installed
	$(BIN)/regard systems --markdown > docs/systems.md
	$(BIN)/regard parts --markdown > docs/parts.md
	$(BIN)/python examples/patterns.py docs/patterns.png
	@if [ -f runs/demo-dates/alignment.png ]; then cp runs/demo-dates/alignment.png docs/; fi

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
