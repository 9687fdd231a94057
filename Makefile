# What is needed beside Python 3.11: nothing. Both commands of the README install from requirements.lock.
# Tests of the page need a Chromium too: `make browser` on Debian and Ubuntu; without one they are skipped, except in CI.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install browser flower catalogue demo docs test test-federation test-flower lint bench clean

.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

install: .venv/installed  ## make .venv

browser:  ## Chromium, for the tests of the page
	command -v chromium || { $(if $(filter 0,$(shell id -u)),,sudo) apt-get update -q && \
	  $(if $(filter 0,$(shell id -u)),,sudo) apt-get install -qy chromium; }

.venv-flower/installed: requirements-flower.lock pyproject.toml
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-flower.lock
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

flower: .venv-flower/installed  ## Flower in an environment of its own, for its tests: it wants older packages than ours

catalogue: install  ## what `fedexperts methods` shows, after a change to a method or its options
	$(BIN)/python -m fedexperts.catalogue

demo: install  ## three methods on the embedded digits: table and page
	rm -rf demo
	$(BIN)/fedexperts compare fedmoe fedavg standalone --config examples/demo.toml --out demo

docs: install  ## the documentation as a site in build/docs; open index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: install
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## environment, lint, types and tests
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 40 --durations-min 3

test-federation: install  ## real processes that are killed, every method over a network, every method by two processes
	$(BIN)/python -m pytest -m federation tests/federation tests/engine/test_ranks.py

test-flower: install flower  ## the same over Flower's processes
	FEDEXPERTS_FLOWER=required $(BIN)/python -m pytest -m federation tests/federation/test_flower.py

bench: install  ## speed, as ratios within this run
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/experts.py
	$(BIN)/python benchmarks/backbones.py
	$(BIN)/python benchmarks/pool.py
	$(BIN)/python benchmarks/methods.py
	$(BIN)/python benchmarks/clients.py
	$(BIN)/python benchmarks/layout.py

clean:
	rm -rf .venv .venv-flower demo build src/*.egg-info
