# Each target sets up what it needs; no environment has to be activated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SITE_STAMP := $(VENV)/.installed-docs
FUZZ_STAMP := $(VENV)/.installed-fuzz
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup run test check measure floors schema docs site bench soak probes evidence clean

setup: $(STAMP)

# The stamp is newer than both files exactly when nothing has to be installed.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Esper needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $(STAMP)

run: setup  ## Train a policy on the digits that ship with Esper: 90 s on two free cores.
	$(BIN)/esper-train ppo --serve

test: setup  ## Every test; those of one file share what it has set up.
	$(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

check: setup  ## Style, types and the project's conventions.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.lint_device_sync
	$(BIN)/python -m tools.measure_house
	$(BIN)/python -m pytest -q tests/meta tests/test_import_isolation.py

measure: setup  ## Imports, sizes, cycles, call paths of a decision and an event; fails beyond a limit.
	$(BIN)/python -m tools.measure_house

floors: setup  ## Try the lowest versions that pyproject.toml allows, in a scratch environment.
	$(BIN)/python -m tools.floors

schema: setup  ## Write the committed event schema again.
	$(BIN)/esper-telemetry schema > telemetry/schema/events.schema.json

docs: setup  ## Write the generated pages again.
	$(BIN)/python -m tools.generate_lifecycle_docs
	$(BIN)/python -m tools.generate_observation_docs
	$(BIN)/python -m tools.generate_sink_docs
	$(BIN)/python -m tools.generate_reference_docs

# Sphinx is installed here only, so that `make setup` stays small.
$(SITE_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $(SITE_STAMP)

site: $(SITE_STAMP)  ## Build the documentation as HTML in docs/_site; warnings are errors.
	$(BIN)/python -m sphinx -W --keep-going --quiet --builder html docs docs/_site

bench: setup  ## Figures beside their targets; writes docs/performance.md.
	$(BIN)/python -m tools.bench

# atheris is installed here only: there are wheels of it for few systems.
$(FUZZ_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --editable '.[fuzz]'
	touch $(FUZZ_STAMP)

soak: $(FUZZ_STAMP)  ## Faults by the hundred; writes docs/reliability.md. Takes about four hours on two cores.
	$(BIN)/python -m tools.soak

probes: setup  ## Train policies on the probes and compare them with the best policy; half an hour.
	$(BIN)/python -m tools.probes

evidence: setup  ## Train policies, compare them, write docs/evidence.md; two hours, goes on if interrupted.
	$(BIN)/python -m tools.evidence

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_site
