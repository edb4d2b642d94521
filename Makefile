# Everything a newcomer runs. `make demo` and `make test` set up their own environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STMS   := $(BIN)/stms

.DEFAULT_GOAL := help
# Some machines forbid it: every process of the tests would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo serve test test-lab test-all lint format docs generated client kubernetes verify bench study container lock

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# Made by every build, too; here again without one whenever a source is newer.
GENERATED := stms_client/sync/client.py
$(GENERATED): stms_client/build_steps/generate.py $(wildcard stms_client/aio/*.py core/*.py core/data/*.py core/packed/*.py core/packed/*.pyi)
	$(PYTHON) $<
	@touch $@

# Two locked sets: what the service needs, and what its tests need on top. Hashes are checked, nothing is resolved anew.
$(VENV)/.runtime: requirements/runtime.txt pyproject.toml $(wildcard app/serving/*.c core/packed/*.c) | $(GENERATED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "STMS needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m core.kernels
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime requirements/docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

demo: $(VENV)/.runtime ## the main job on real data: train a teacher and its students, then ask them
	$(STMS) demo

serve: $(VENV)/.runtime ## API and worker together on SQLite
	$(STMS) serve

test: $(VENV)/.dev ## the tests that everybody runs, in a few minutes
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not long"

test-lab: $(VENV)/.dev ## the tests of the laboratory: of benchmarks, studies, experiments and its part of verification
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder lab/tests

test-all: $(VENV)/.dev $(VENV)/.docs ## every test, with branch coverage and its floors, then the container
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --cov --cov-report= tests lab/tests
	$(BIN)/python tests/coverage_floor.py core=95 app=90 stms_client=90
	$(BIN)/python -m deploy.container.smoke || { [ $$? = 3 ] && echo "THE CONTAINER WAS NOT TESTED: no engine or no base images, see above."; }

lint: $(VENV)/.dev ## formatting, lint, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

format: $(VENV)/.dev ## format and fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs ## the documentation site, with strict links and nothing from outside: build/docs/site/index.html
	$(BIN)/python -m docs.site

generated: client kubernetes ## everything in git that is made from the code: these two, and docs/hyperparameters.md
	$(STMS) hyperparameters --update docs/hyperparameters.md

client: $(VENV)/.dev ## generate the modules of the client: its blocking half, its copy of the core, documents.py
	$(BIN)/python -m tests.stms_client.generate

kubernetes: $(VENV)/.dev ## what is made from the Helm chart with real Helm: deploy/kubernetes/stms.yaml
	$(BIN)/python -m deploy.render

verify: $(VENV)/.dev ## chaos, hostile and safety (need PostgreSQL, best as root); one: make verify NAME=chaos OPTIONS=--quick
	$(BIN)/python -m lab.verification $(or $(NAME),all) $(OPTIONS)

bench: $(VENV)/.dev ## a benchmark of speed: make bench NAME=serve OPTIONS=--quick; without NAME, the list of all programs
	$(BIN)/python -m lab.benchmarks $(NAME) $(OPTIONS)

study: $(VENV)/.dev ## a measurement of accuracy: make study NAME=accuracy; without NAME, the list of all programs
	$(BIN)/python -m lab.studies $(NAME) $(OPTIONS)

container: $(VENV)/.runtime ## build the image and do the main job in it, then in the composition (Docker or podman)
	$(BIN)/python -m deploy.container.smoke
	$(BIN)/python -m deploy.container.compose_smoke

lock: ## resolve the requirements anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build -o requirements/runtime.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --all-extras -c requirements/runtime.txt -o requirements/dev.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build --extra oidc -c requirements/runtime.txt -c requirements/dev.txt -o requirements/oidc.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build --extra grpc -c requirements/runtime.txt -c requirements/dev.txt -o requirements/grpc.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build --extra objects -c requirements/runtime.txt -c requirements/dev.txt -o requirements/objects.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build --extra images -c requirements/runtime.txt -c requirements/dev.txt -o requirements/images.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build --extra encoders -c requirements/runtime.txt -c requirements/dev.txt -o requirements/encoders.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --group serving -c requirements/runtime.txt -o requirements/serving.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --group docs -c requirements/runtime.txt -c requirements/dev.txt -o requirements/docs.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --group kubernetes -c requirements/runtime.txt -c requirements/dev.txt -o requirements/kubernetes.txt
