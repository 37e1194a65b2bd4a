# One front door for people and CI. `make help` lists what there is; every target sets up what it needs.

SHELL := /bin/sh
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
# The tests start some hundred daemons; without byte code each would compile all of it anew.
export PYTHONDONTWRITEBYTECODE :=
DEFAULT_MARKS := not slow and not docker and not kubernetes
JOBS ?= 2
ARGS ?=

# A Python from 3.9 on starts the set-up: the first of these that runs. A folder of the PATH that may not be read is no error.
PYTHON ?= python3
STARTERS := $(PYTHON) python3 /usr/bin/python3 /usr/local/bin/python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-python test-serial test-again test-go test-long test-docker test-docker-long docker-inside test-kubernetes test-kubernetes-long kubernetes-inside soak cover images guest-image daemon-image lint types fmt arch bench bench-kubernetes docs guest sync-client clean distclean ci

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

setup: ## make .venv with everything, the guest built; does nothing when nothing changed
	@for python in $(STARTERS); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1; then exec "$$python" scripts/setup.py; fi; \
	done; echo "setup: no Python 3.9 or newer runs here. Install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv), then run make again." >&2; exit 1

demo: setup ## 164 real problems, a sandbox each, twice; no set-up of yours (ARGS="--limit 20")
	@.venv/bin/sandboxd demo $(ARGS)

test: setup test-python test-serial test-go ## all tests but the long ones (ARGS="-k name")

test-python: setup
	$(PYTEST) -n $(JOBS) -m "$(DEFAULT_MARKS) and not serial" $(ARGS)

# pytest's 5 stands for "no test was chosen", which is no failure here: all may run in parallel.
test-serial: setup
	$(PYTEST) -m "$(DEFAULT_MARKS) and serial" $(ARGS) || [ $$? -eq 5 ]

test-again: setup ## what failed last, once more, and then what `make test` had not come to
	$(PYTEST) --lf --lfnf=none -m "$(DEFAULT_MARKS) and not serial" $(ARGS) || [ $$? -eq 5 ]
	$(MAKE) test-serial ARGS="--lf $(ARGS)"
	$(MAKE) test-go

test-go: setup
	$(PY) scripts/build_guest.py -- vet ./...
	$(PY) scripts/build_guest.py -- test ./...

test-long: setup ## the tests that take more than a few seconds each
	$(PYTEST) -m "slow and not docker and not kubernetes" --timeout 600 -o faulthandler_timeout=900 $(ARGS) || [ $$? -eq 5 ]

test-docker: setup ## the tests that need a container engine: they start their own (ARGS="-k name")
	$(PY) -m tests.support.engine -- $(MAKE) --no-print-directory docker-inside DOCKER_MARKS="docker and not slow" DOCKER_S=60

test-docker-long: setup ## those of them that take more than a few seconds each
	$(PY) -m tests.support.engine -- $(MAKE) --no-print-directory docker-inside DOCKER_MARKS="docker and slow" DOCKER_S=600

# Run by the two above, beside their engine.
docker-inside:
	$(PYTEST) -n $(JOBS) -m "$(DOCKER_MARKS) and not serial" --timeout $(DOCKER_S) -o faulthandler_timeout=$(DOCKER_S)0 $(ARGS) || [ $$? -eq 5 ]
	$(PYTEST) -m "$(DOCKER_MARKS) and serial" --timeout $(DOCKER_S) -o faulthandler_timeout=$(DOCKER_S)0 $(ARGS) || [ $$? -eq 5 ]

test-kubernetes: setup ## the tests that need a Kubernetes cluster: they boot their own (ARGS="-k name")
	$(PY) -m tests.support.cluster -- $(MAKE) --no-print-directory kubernetes-inside KUBERNETES_MARKS="kubernetes and not slow"

test-kubernetes-long: setup ## those of them that take more than a few seconds each
	$(PY) -m tests.support.cluster -- $(MAKE) --no-print-directory kubernetes-inside KUBERNETES_MARKS="kubernetes and slow"

# Run by the two above, beside their cluster.
kubernetes-inside:
	$(PYTEST) -n $(JOBS) -m "$(KUBERNETES_MARKS) and not serial" --timeout 300 -o faulthandler_timeout=900 $(ARGS) || [ $$? -eq 5 ]
	$(PYTEST) -m "$(KUBERNETES_MARKS) and serial" --timeout 300 -o faulthandler_timeout=900 $(ARGS) || [ $$? -eq 5 ]

soak: setup ## rollouts while daemon, boxes, commands and callers are killed, and the account (ARGS="--leases 1000 --seed 7")
	$(PY) -m tests.faults.account $(ARGS)

cover: setup ## which lines and branches no test has tried
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -m "$(DEFAULT_MARKS)" $(ARGS)
	$(PY) -m coverage combine -q
	$(PY) -m coverage report

lint: setup ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

fmt: setup ## format, and mend what ruff can mend
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

types: setup ## mypy, strict; the SDK also as macOS and Windows see it
	$(PY) -m mypy
	$(PY) -m mypy --platform darwin client sandboxd/wire
	$(PY) -m mypy --platform win32 client sandboxd/wire

arch: setup ## the walls: import contracts, house rules, generated files and pages in step
	$(PYTEST) -q tests/architecture

images: setup ## build the images `base` and `python` into the engine (ARGS="--root DIR" for local)
	@$(PY) -m scripts.images $(ARGS)

guest-image: setup ## build the guest's own image for pods into the engine (ARGS="--tar FILE --architecture arm64")
	@$(PY) -m scripts.images.guest $(ARGS)

daemon-image: setup ## build the daemon's own image into the engine (ARGS="--from IMAGE")
	@$(PY) -m scripts.images.daemon $(ARGS)

bench: setup ## the table of docs/performance.md, measured here and now
	$(PY) -m scripts.bench $(ARGS)

# `python -m tests.support.engine -- make bench-kubernetes` compares commands with a container's too.
bench-kubernetes: setup ## the rows of Kubernetes, beside a cluster that is booted for them
	$(PY) -m tests.support.cluster -- $(PY) -m scripts.bench --backend kubernetes $(ARGS)

docs: setup ## write the generated pages anew
	$(PY) -m scripts.gen_docs

guest: setup ## build the guest agent, if its sources changed
	@$(PY) scripts/build_guest.py

sync-client: setup ## write the SDK's synchronous twin anew
	$(PY) scripts/unasync.py

clean: ## remove what was built and cached, but not .venv
	rm -rf build dist sandboxd/guest/bin .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* bench-*.json
	find sandboxd client tests scripts examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove .venv too
	rm -rf .venv

ci: ## what .ci/run runs
	@bash .ci/run
