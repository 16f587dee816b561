# Apart from the installation of packages, only the target nasdaq100 needs a network.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: demo test check lint nasdaq100 clean
.DEFAULT_GOAL := demo

demo: $(READY)  ## train and test agents on the bundled sample, and write reports/demo.html
	@$(BIN)/finpod demo --overwrite

test: $(READY)  ## run the tests, except slow tests, end-to-end tests and tests that need a GPU
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --max-worker-restart 0

check: $(READY)  ## run the end-to-end tests: the commands of the README, agents that must learn, and clusters that lose nodes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m journey

lint: $(READY)  ## check style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

nasdaq100: $(READY)  ## download the NASDAQ-100 from Yahoo, train agents and test them
	@test -d data/nasdaq100 || $(BIN)/finpod data fetch --universe nasdaq100 --name nasdaq100 --start 2008-01-02
	@test -d strategies/nasdaq100 || $(BIN)/finpod train stocks --market nasdaq100 --out strategies/nasdaq100 \
		--train 2009-01-02:2018-12-31 --validation 2019-01-02:2019-12-31
	@$(BIN)/finpod backtest strategies/nasdaq100 --market nasdaq100 --start 2020-01-02 --name nasdaq100 --overwrite

clean:  ## remove caches and builds; data, strategies, backtests and reports stay
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find finpod tests strategies backtests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and f"error: finpod needs Python 3.11 or newer, $(PYTHON) is {v}; make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
