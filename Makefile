# make demo: set up, then the main job on built-in data.   make test: set up, then all checks and tests.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml constraints.txt
# One process per core, one thread each.
PARALLEL := -n auto --dist worksteal

.PHONY: demo test quick bench evidence grid docs clean

demo: .venv/core
	$(BIN)/afec run digits-regression --method finetune ewc ewc@equal-compute ewc+afec --seeds 5 \
		--runs demo-output/runs --picture demo-output/circles.png
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

# Every study that we publish (`published = true`), one after the other, each resumed where it was: in the background, one
# process per core, at the lowest priority. nice alone does nothing between sessions where the kernel groups processes by
# session (autogroup), so the session's own priority is lowered too. AFEC_DATA says where the images are (docs/data.md).
evidence: .venv/core
	@mkdir -p runs
	@setsid nohup nice -n 19 sh -c 'echo 19 >/proc/self/autogroup 2>/dev/null; \
		for study in $$($(BIN)/python -m afec.lab.studies); do echo "== $$study"; $(BIN)/afec study run $$study; done' \
		>runs/evidence.log 2>&1 </dev/null & echo $$! >runs/evidence.pid
	@echo "started in the background; results go into results/"
	@echo "watch it:  tail -f runs/evidence.log"
	@echo "stop it:   kill -INT -- -$$(cat runs/evidence.pid)    (make evidence goes on where it was)"

# The paper's main table, every row and column of it, and Omniglot, at `smoke` and on the real files (AFEC_DATA, docs/data.md).
grid: .venv/core
	$(BIN)/afec study run grid

docs: .venv/dev
	$(BIN)/python docs/figures/active_forgetting.py
	$(BIN)/python -m mkdocs build --strict --site-dir build/docs

# torch first and by itself: the constraint then decides which build everything else finds.
.venv/core: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

.venv/dev: .venv/core
	$(INSTALL) -e ".[trainers,dev]"
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build
