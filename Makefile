# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
# They need Python >= 3.10 and make; everything else goes into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
export PYTHONDONTWRITEBYTECODE :=  # the tests start hundreds of processes: none compiles again what another has

.PHONY: demo test lint types imports unit smoke test-long test-torch test-frameworks test-browser bench clean help

help:
	@echo "make demo    five real trainings that fail, are caught, explained and cured (SYSTEM=name for one)"
	@echo "make test    install, lint, types, import rules, tests"
	@echo "make smoke   one healthy and one failing run in each framework, beside the torch that is there (part of CI)"
	@echo "make test-long     the tests that take minutes: the five systems, all failing scripts"
	@echo "make test-torch TORCH=2.6.0  the core suites with another version of torch, in an environment of its own"
	@echo "make test-frameworks  transformers, Lightning, Accelerate, PEFT and TRL, in an environment of their own (1 GB)"
	@echo "make test-browser  the pages in a real browser (Debian's chromium; installs it where it may)"
	@echo "make bench   cost of guarding against the peers, speed of scan (installs transformers; 10 GB of disk, half an hour)"
	@echo "make clean   remove the virtual environment and caches"

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing stayfinite and its development tools into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py $(SYSTEM)

test: lint types imports unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile --no-loadscope-reorder --durations 25

test-long: $(STAMP)
	$(BIN)/python -m pytest -m long -n 2 --dist loadfile --durations 10

test-torch:
	@test -n "$(TORCH)" || { echo "say which: make test-torch TORCH=2.6.0"; exit 2; }
	@test -x .venv-$(TORCH)/bin/python || $(PYTHON) -m venv .venv-$(TORCH)
	@.venv-$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable . "torch==$(TORCH)" numpy \
	  pytest==9.2.0 pytest-xdist==3.8.0 hypothesis==6.170.15
	.venv-$(TORCH)/bin/python -m pytest -n 2 --dist loadfile tests/hooks tests/guard tests/watch tests/replay tests/recover

FRAMEWORKS := .venv-frameworks

$(FRAMEWORKS)/installed: pyproject.toml
	@test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	@echo "installing the frameworks into $(FRAMEWORKS) (once)"
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group frameworks
	@touch $@

# The three frameworks alone, beside the torch and pytest of $(VENV): seconds instead of a second torch.
SMOKE := .venv-smoke
PURELIB := -c "import sysconfig; print(sysconfig.get_path('purelib'))"

$(SMOKE)/installed: $(STAMP)
	@test -x $(SMOKE)/bin/python || $(PYTHON) -m venv $(SMOKE)
	@echo "installing transformers, accelerate and lightning into $(SMOKE) (once)"
	@$(BIN)/python $(PURELIB) > "$$($(SMOKE)/bin/python $(PURELIB))/beside.pth"
	@$(SMOKE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(SMOKE)/bin/python -m pip install --quiet --disable-pip-version-check --group smoke
	@touch $@

smoke: $(SMOKE)/installed
	PYTHONPATH=src $(SMOKE)/bin/python -m pytest tests/frameworks/test_healthy.py tests/frameworks/test_twelve_failures.py \
	  -k "log_zero or (bit_identical and not accumulation and not manual and not bfloat16)"

test-frameworks: $(FRAMEWORKS)/installed
	$(FRAMEWORKS)/bin/python -m pytest -n 2 --durations 10 tests/frameworks

test-browser: $(STAMP)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium chromium-driver; } || \
	  { echo "install chromium and chromedriver first, for example: sudo apt-get install chromium chromium-driver"; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group browser
	$(BIN)/python -m pytest tests/browser

bench: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/run_overhead.py
	$(BIN)/python bench/step_counts.py
	$(BIN)/python bench/scan.py

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis
