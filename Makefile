# Everything runs in .venv, made on first use from constraints.txt. Needs python3 (3.11+), git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Asked for by exactly this name, torch comes as the CPU build of the index; unpinned it may bring CUDA along.
TORCH := torch==2.13.0
BENCH_VENV := .bench-venv
TOOLS_VENV := .tools-venv
PIP_INSTALL := $(BIN)/pip install --disable-pip-version-check -qq -c constraints.txt

.PHONY: help setup demo test test-thorough test-frameworks test-gpu e2e-slurm e2e-kubernetes scenarios check fmt bench bench-quick bench-peers lock lock-images prefect-schema sbom clean
.DEFAULT_GOAL := help
# Compiled once, not by each of hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo 'make demo   six machines, a training job, six faults, and the weights compared (under 5 minutes)'
	@echo 'make test   all tests'
	@echo 'make test-thorough  what it leaves out, mostly more cases of the same kinds: hours'
	@echo 'make test-frameworks  kill and resume with training libraries too large for every run (a venv of 3 GB)'
	@echo 'make test-gpu  on a machine with an NVIDIA GPU: saves, restores, checks, faults and readings of a real one'
	@echo 'make e2e-slurm  a job on a real Slurm cluster of six nodes (apt-get install slurm-wlm munge), and three faults'
	@echo 'make e2e-kubernetes  the same on a real Kubernetes control plane (built once from Debian sources: minutes)'
	@echo 'make scenarios  scripted faults, and what must not act: recall, precision, wrong actions (must be 0)'
	@echo 'make check  format, lint, words and types'
	@echo 'make fmt    format, and fix what ruff can fix'
	@echo 'make bench  measurements beside other launchers (10 runs each; bench-quick: 2; BENCH_ARGS=--write-docs)'
	@echo 'make lock   write constraints.txt from what is installed, and the locks with hashes that the images install'
	@echo 'make prefect-schema  write the schema that new sites take, from the migrations of the installed Prefect'
	@echo 'make sbom   bills of materials (CycloneDX) of both images, in dist/'

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

# Thousands of databases in temporary folders: in memory, where nothing waits for a disk.
IN_MEMORY := $(shell test -d /dev/shm -a -w /dev/shm && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)
SLOWEST := --durations=10 --durations-min=10

# Where tests with real processes are: nothing else need be imported to collect them.
E2E = $(sort $(patsubst %/conftest.py,%,$(shell grep -rl --include='*.py' 'mark\.e2e' tests)))

# Units; then tests with real processes, two at a time: those of the site (tests/e2e) one after the other, all others beside
# them, file by file.
test: $(STAMP)
	$(IN_MEMORY) $(BIN)/python -m pytest -m 'not e2e and not thorough and not gpu' -n auto --dist loadfile
	$(BIN)/python -m pytest -m 'e2e and not thorough and not gpu' -n 2 --dist loadfile --no-loadscope-reorder $(SLOWEST) $(E2E)

# What CI has no time for.
test-thorough: $(STAMP)
	$(BIN)/python -m pytest -m thorough
	$(BIN)/python -m tests.nemesis --seeds 0:10000

# With the torch of the machine where TEST_PYTHON names its interpreter: the index's own is built without CUDA.
TEST_PYTHON ?= $(BIN)/python
test-gpu:
	@test "$(TEST_PYTHON)" != "$(BIN)/python" || $(MAKE) --no-print-directory setup
	$(TEST_PYTHON) -m pytest -v tests/gpu

# Training libraries that are too large, or too slow to begin, for every run; here with all that each asks for but torch.
FRAMEWORKS_VENV := .frameworks-venv
# After torchtitan, what its Trainer imports; datasets asks for an older huggingface_hub than transformers does.
FRAMEWORKS := bitsandbytes==0.50.2 galore-torch==1.0 deepspeed==0.19.8 \
  torchtitan==0.3.0 spmd_types==0.2.3 tyro==1.0.17 typeguard==4.6.1 tensorboard==2.21.0 absl-py==2.5.1 protobuf==7.36.2 \
  datasets==4.7.0 dill==0.4.0 multiprocess==0.70.18 pandas==3.1.1 pyarrow==26.0.1
FRAMEWORKS_NEED := einops hjson msgpack ninja py-cpuinfo python-dateutil
test-frameworks: $(FRAMEWORKS_VENV)/.installed
	$(FRAMEWORKS_VENV)/bin/python -m pytest -v tests/integrations

$(FRAMEWORKS_VENV)/.installed: Makefile constraints.txt pyproject.toml
	@test -x $(FRAMEWORKS_VENV)/bin/pip || $(PYTHON) -m venv $(FRAMEWORKS_VENV)
	@echo 'installing into $(FRAMEWORKS_VENV) (once)'
	@$(FRAMEWORKS_VENV)/bin/pip install --disable-pip-version-check -qq -c constraints.txt $(TORCH)
	@$(FRAMEWORKS_VENV)/bin/pip install --disable-pip-version-check -qq -c constraints.txt -e '.[control,dev]' \
	  $(FRAMEWORKS_NEED)
	@$(FRAMEWORKS_VENV)/bin/pip install --disable-pip-version-check -qq --no-deps $(FRAMEWORKS)
	@touch $@

# `make test` runs it too, where Slurm is installed.
e2e-slurm: $(STAMP)
	$(BIN)/python -m pytest -v tests/clusters/test_slurm_story.py

# Left out of `make test`; as root the first time, for apt-get.
e2e-kubernetes: $(STAMP)
	tests/kubernetes/build.sh
	$(BIN)/python -m pytest -v tests/kubernetes/test_story.py

scenarios: $(STAMP)
	$(BIN)/python -m tests.scenarios

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/python -m tests.words
	$(BIN)/mypy -p holdfast

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) bench-peers
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-quick: $(STAMP) bench-peers
	$(BIN)/python -m benchmarks -n 2 $(BENCH_ARGS)

# The launchers that `make bench` compares with. One that cannot be installed is reported, and missing in the table.
# dlrover needs protobuf and does not ask for it.
bench-peers: $(BENCH_VENV)/.installed

$(BENCH_VENV)/.installed: Makefile constraints.txt pyproject.toml
	@test -x $(BENCH_VENV)/bin/pip || $(PYTHON) -m venv $(BENCH_VENV)
	@echo 'installing into $(BENCH_VENV) (once)'
	@$(BENCH_VENV)/bin/pip install --disable-pip-version-check -qq -c constraints.txt $(TORCH) -e .
	@for peer in 'nvidia-resiliency-ext==0.4.1' 'dlrover[k8s]==0.6.1' protobuf 's3torchconnector[dcp]==1.5.0' \
	  'bytecheckpoint==0.0.2' torchft==0.2.0; do \
	  $(BENCH_VENV)/bin/pip install --disable-pip-version-check -qq $(TORCH) "$$peer" \
	    || echo "peer $$peer cannot be installed: its column will say 'missing'" >&2; done
	@# It asks for an older torch and protobuf than the others; it runs with these.
	@$(BENCH_VENV)/bin/pip install --disable-pip-version-check -qq --no-deps bytecheckpoint==0.0.2 \
	  && $(BENCH_VENV)/bin/pip install --disable-pip-version-check -qq $(TORCH) mmh3 universal-pathlib cachetools safetensors \
	  || echo "peer bytecheckpoint cannot be installed: its column will say 'missing'" >&2
	@touch $@

# A local build suffix such as "+cpu" names no file of the index: it is cut off.
lock: $(STAMP)
	@{ echo '# Every version that the tests ran with; written by `make lock`.'; \
	  $(BIN)/pip freeze --exclude-editable | sed -E 's/^(torch==[^+]+)\+.*/\1/'; } > constraints.txt.new
	@mv constraints.txt.new constraints.txt && touch $(STAMP)
	@$(MAKE) --no-print-directory lock-images

# What the images install: every package of every version above that they need, by the hashes of its files.
IMAGES := deployments/kubernetes
LOCK := $(TOOLS_VENV)/bin/uv pip compile --quiet --no-header --no-annotate --generate-hashes -c constraints.txt \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --index-url https://pypi.org/simple pyproject.toml
lock-images: $(TOOLS_VENV)/.installed
	$(LOCK) --extra control --extra kubernetes --extra postgres -o $(IMAGES)/control.lock
	$(LOCK) --extra train -o $(IMAGES)/agent.lock

# After a change of Prefect's version in constraints.txt; until then new sites migrate, which takes ten seconds.
prefect-schema: $(STAMP)
	$(BIN)/python -m holdfast.deployments.local.prefect_database

# Bills of materials (CycloneDX) of both images, from their locks.
sbom: $(TOOLS_VENV)/.installed
	@mkdir -p dist
	@for image in control agent; do \
	  PYTHONWARNINGS=ignore $(TOOLS_VENV)/bin/cyclonedx-py requirements $(IMAGES)/$$image.lock --pyproject pyproject.toml --of JSON \
	    --output-reproducible -o dist/holdfast-$$image.cdx.json || exit 1; \
	  echo "dist/holdfast-$$image.cdx.json"; done

$(TOOLS_VENV)/.installed: Makefile
	@test -x $(TOOLS_VENV)/bin/pip || $(PYTHON) -m venv $(TOOLS_VENV)
	@$(TOOLS_VENV)/bin/pip install --disable-pip-version-check -qq uv==0.13.9 cyclonedx-bom==7.5.0
	@touch $@

docs/settings.md: holdfast/settings.py holdfast/settings_table.py $(wildcard holdfast/drivers/*_settings.py) $(STAMP)
	$(BIN)/python -m holdfast.settings_table > $@

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
