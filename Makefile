# Everything needs only Python 3.11+ and make; the first target that runs creates .venv.
#   make test        the quick tests, in parallel
#   make check       lint, documentation, demo, and the tests that make test leaves out
#   make states      some tests without drivers, with OpenGL alone, and in the background of a script
#   make lint        ruff (lint and format) and mypy --strict
#   make docs        the documentation site, into build/site; a warning is an error
#   make docs-versions    that site beside those of other versions, in build/versions, with a switch between them
#   make demo        one program on every backend here, one answer, and a report in build/demo
#   make bench-cpu   the cpu backend against its peers, which it installs into .bench
#   make bench-cliffs    what people write first, and loops of small launches, against the same peers
#   make soak sweep fuzz exhaustive    the long tiers, one pytest marker each

comma  := ,
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
USABLE := $(VENV)/.usable
STAMP  := $(VENV)/.installed
GPUS   := opencl,wgpu$(if $(shell command -v nvidia-smi 2>/dev/null),$(comma)cuda)
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
TIERS  := soak sweep fuzz exhaustive
BENCHES := import_time registry dispatch_overhead
PEERS  := .bench

.DELETE_ON_ERROR:
.PHONY: help venv demo docs docs-versions test check states lint format bench bench-cpu bench-cliffs clean $(TIERS)

help:
	@sed -n 's/^#   //p' Makefile

venv: $(STAMP)

# What the demo needs is a small part of what the tests need. Where no GPU interface can be installed, there is still cpu.
$(USABLE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vyre needs Python 3.11 or newer; $(PYTHON) is not. Fix: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[$(GPUS)]' || $(PIP) --editable .
	@touch $@

$(STAMP): $(USABLE)
	$(PIP) --editable '.[dev]'
	@touch $@

demo: $(USABLE)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(PYTEST) -n auto --dist worksteal

check: lint docs demo
	$(PYTEST) -n auto --dist worksteal -m "check$(foreach tier,$(TIERS), and not $(tier))"

states: $(STAMP)
	$(BIN)/python bench/test_matrix.py --short

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Not --quiet: warnings that are not shown are not counted. What the variable hides is no warning about these pages.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html"

docs-versions: docs
	$(BIN)/python docs/publish_version.py build/site build/versions

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Exit status 5 means that no test carries the marker yet; an empty tier is not a failure.
$(TIERS): $(STAMP)
	$(PYTEST) -n auto --dist worksteal -m $@ --timeout 0 || test $$? -eq 5

bench: $(STAMP)
	@set -e; for name in $(BENCHES); do echo "== $$name"; $(BIN)/python bench/$$name.py; done

# A peer that cannot be installed here is left out; the table says who was measured.
$(PEERS)/.installed: pyproject.toml bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	for peer in $$(grep -v '^#' bench/peers.txt); do \
	  $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $$peer || echo "no $$peer here"; done
	@touch $@

bench-cpu: $(PEERS)/.installed
	$(PEERS)/bin/python bench/cpu.py

bench-cliffs: $(PEERS)/.installed
	$(PEERS)/bin/python bench/cliffs.py

clean:
	rm -rf $(VENV) $(PEERS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find src tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
