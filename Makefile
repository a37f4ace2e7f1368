# Everything runs in .venv, made on first use from constraints.txt. Needs python3 (3.11+), git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Asked for by exactly this name, torch comes as the CPU build of the index; unpinned it may bring CUDA along.
TORCH := torch==2.13.0
BENCH_VENV := .bench-venv
PIP_INSTALL := $(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: help setup demo test check fmt bench bench-quick bench-peers lock clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo   six machines, a training job, six faults, and the weights compared (under 5 minutes)'
	@echo 'make test   all tests'
	@echo 'make check  format, lint and types'
	@echo 'make fmt    format and mend what ruff can mend'
	@echo 'make bench  measurements beside other launchers (10 runs each; bench-quick: 2; BENCH_ARGS=--write-docs)'
	@echo 'make lock   write constraints.txt from what is installed'

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: Holdfast needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>/dev/null || echo missing): \
	install one and name it, as in 'make $(MAKECMDGOALS) PYTHON=python3.12'" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "error: '$(PYTHON) -m venv' failed: on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	@echo 'installing into $(VENV) (once; torch is the largest part)'
	@$(PIP_INSTALL) $(TORCH)
	@$(PIP_INSTALL) -e '.[control,dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/holdfast demo

test: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p holdfast

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) bench-peers
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-quick: $(STAMP) bench-peers
	$(BIN)/python -m benchmarks -n 2 $(BENCH_ARGS)

# The launchers that `make bench` compares with. One that cannot be installed is reported, and missing in the table.
bench-peers: $(BENCH_VENV)/.installed

$(BENCH_VENV)/.installed: Makefile constraints.txt pyproject.toml
	@test -x $(BENCH_VENV)/bin/pip || $(PYTHON) -m venv $(BENCH_VENV)
	@echo 'installing into $(BENCH_VENV) (once)'
	@$(BENCH_VENV)/bin/pip install --disable-pip-version-check --quiet -c constraints.txt $(TORCH) -e .
	@for peer in 'nvidia-resiliency-ext==0.4.1' 'dlrover[k8s]==0.6.1'; do \
	  $(BENCH_VENV)/bin/pip install --disable-pip-version-check --quiet $(TORCH) "$$peer" \
	    || echo "peer $$peer cannot be installed: its column will say 'missing'" >&2; done
	@touch $@

# A local build suffix such as "+cpu" names no file of the index: it is cut off.
lock: $(STAMP)
	@{ echo '# Every version that the tests ran with; written by `make lock`.'; \
	  $(BIN)/pip freeze --exclude-editable | sed -E 's/^(torch==[^+]+)\+.*/\1/'; } > constraints.txt.new
	@mv constraints.txt.new constraints.txt && touch $(STAMP)

docs/settings.md: holdfast/settings.py holdfast/settings_table.py $(STAMP)
	$(BIN)/python -m holdfast.settings_table > $@

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
