# Every target sets up what it needs; Python >= 3.11 and make are enough.
PYTHON ?= python3
BIN := .venv/bin
# Processes of the test suite; each may use two gigabytes of memory.
WORKERS ?= 2
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 10
EXTRAS := train,plot,video,demo,onnx,hub,generalization,docs,dev
# Versions of all packages; `make CONSTRAINTS=FILE ...` uses others, after `make clean`.
CONSTRAINTS ?= constraints.txt
export PIP_CONSTRAINT := $(abspath $(CONSTRAINTS))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-core test-rest test-all test-slow coverage reliability check docs release format clean

demo: .venv/ready  ## run everything once, in minutes, and write an HTML report
	$(BIN)/disco quickstart

test: .venv/ready  ## run the first tier of the tests, in minutes: every module, all proofs of exactness
	$(PYTEST)

test-core: .venv/ready  ## run the first tier of the core, without tasks and commands
	$(PYTEST) tests/basis tests/functional tests/nn tests/convert tests/models tests/test_checks.py tests/test_equivariance.py \
	    tests/test_export.py tests/test_files.py tests/test_fold.py tests/test_guarantees.py tests/test_hub.py \
	    tests/test_resampling.py tests/test_scales.py

test-rest: .venv/ready  ## run the second tier: kills, full disks, malformed files, every layer with every tool
	$(PYTEST) -m "thorough and not slow"

test-all: test test-rest  ## run both tiers

test-slow: .venv/ready  ## run the long suites, in hours
	$(BIN)/python -m pytest -m slow

coverage: .venv/ready  ## run the first tier, and print the line coverage: the total, and modules below 80 %
	mkdir -p build
	$(PYTEST) -q --cov scale_disco --cov-report ""
	$(BIN)/coverage report >build/coverage.txt
	@awk '/^TOTAL/ || (/\.py / && $$NF + 0 < 80)' build/coverage.txt

reliability: .venv/ready  ## run the long suites: kills, malformed files, numbers, long runs; print their figures
	$(BIN)/python benchmarks/reliability.py

check: .venv/ready  ## format, lint, types, import graph, links
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_structure.py tests/test_glossary.py

docs: .venv/ready  ## build the documentation in build/docs; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -d build/doctrees -c docs . build/docs
	@echo "built build/docs/index.html"

release: .venv/ready  ## build dist/, check it, and use the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/check_wheel.py dist/*.whl

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .coverage build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Rebuilt when the dependencies change. torch is installed first, so that its pin is not changed later.
.venv/ready: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("scale-disco needs Python >= 3.11, got " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' $(CONSTRAINTS) || echo torch)"
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@
