# Every target does all of its own set-up, from a fresh clone with nothing but git, make and
# Python 3.10 to 3.13.  The second time it is quick: what is done leaves a stamp in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin

# Most tests wait most of the time, so there may be more of them than processors.
JOBS ?= 3

# Real processes on a busy machine may miss a time that has nothing to do with what is tested: such
# a test gets another try, and the end of the run names it ("rerun").  What fails twice more fails.
RERUNS ?= 2

.PHONY: help
help:  ## Show what can be made
	@echo "make <target>, with one of:"
	@sed -nE 's/^([a-z]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: demo
demo: $(VENV)/.with-demo  ## Watch locks in a running shop (five lock servers, real workers)
	@$(BIN)/python -m example_project.demo

.PHONY: test
test: $(VENV)/.with-test  ## Run all tests; TESTS="tests/unit -k keys" runs some of them
	@.ci/servers
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --reruns $(RERUNS) $(TESTS)

.PHONY: lint
lint: $(VENV)/.with-lint  ## Check style, types and import contracts
	@echo "ruff: rules"
	@$(BIN)/ruff check
	@echo "ruff: format"
	@$(BIN)/ruff format --check
	@echo "mypy"
	@$(BIN)/mypy
	@echo "import contracts"
	@$(BIN)/lint-imports

.PHONY: bench
bench: $(VENV)/.with-test  ## Measure; ARGS="--help" shows what can be chosen
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: docs
docs: $(VENV)/.with-docs  ## Build the documentation into docs/_build/html
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@$(BIN)/python -m sphinx -W --keep-going -q -b doctest docs docs/_build/doctest
	@echo "open docs/_build/html/index.html"

.PHONY: clean
clean:  ## Remove everything that was made
	@rm -rf $(VENV) benchmarks/.venv-* .tox build dist docs/_build demo-out .*_cache .hypothesis .coverage* *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment, made anew where its Python has gone, and filled with what a target needs.
ifeq ($(shell test -x $(BIN)/python || echo gone),gone)
$(shell rm -f $(VENV)/.made)
endif

$(VENV)/.made:
	@.ci/make-venv $(VENV)
	@touch $@

$(VENV)/.with-%: setup.cfg pyproject.toml $(VENV)/.made
	@.ci/install $(VENV) '$*'
	@touch $@

.PRECIOUS: $(VENV)/.made $(VENV)/.with-%
