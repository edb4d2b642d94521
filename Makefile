# Everything a newcomer runs. `make demo` and `make test` set up their own environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STMS   := $(BIN)/stms

.DEFAULT_GOAL := help
# Some machines forbid it: every process of the tests would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo serve test test-all lint check format lock clean client bench-solvers bench-accuracy bench-query bench-train bench-tuning bench-compact bench-rejections bench-learners bench-defaults bench-budgets bench-false-positives bench-serve bench-inputs bench-bundles bench-reach bench-cluster bench-letter bench-dashboard chaos hostile safety differential digests sbom docs screenshots kubernetes

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

test-all: $(VENV)/.dev $(VENV)/.docs ## every test, with branch coverage and its floors, then the container
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --cov --cov-report=
	$(BIN)/python tests/coverage_floor.py core=95 app=90 stms_client=90
	$(BIN)/python -m container.smoke || { [ $$? = 3 ] && echo "THE CONTAINER WAS NOT TESTED: no engine or no base images, see above."; }

lint: $(VENV)/.dev ## formatting, lint, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

check: lint test ## formatting, lint, imports, types, tests

format: $(VENV)/.dev ## format and fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs ## the documentation site, with strict links and nothing from outside: build/docs/site/index.html
	$(BIN)/python -m docs_site

screenshots: $(VENV)/.dev ## the pictures of docs/dashboard.md, taken in chromium; PICTURES="job class": only these
	$(BIN)/python -m docs_site.screenshots $(PICTURES)

client: $(VENV)/.dev ## generate the modules of the client: its blocking half, its copy of the core, documents.py
	$(BIN)/python -m tests.stms_client.generate

kubernetes: $(VENV)/.dev ## what is made from the Helm chart with real Helm: deploy/kubernetes/stms.yaml
	$(BIN)/python -m deploy.render

bench-solvers: $(VENV)/.dev ## the solvers against CVXPY, scikit-learn and LIBLINEAR
	$(BIN)/python -m benchmarks.solvers

bench-accuracy: $(VENV)/.dev ## letter and satimage through HTTP: teacher, SVM, gSVM-0, gSVM
	$(BIN)/python -m benchmarks.accuracy

bench-query: $(VENV)/.dev ## one warm query against an empty FastAPI route
	$(BIN)/python -m benchmarks.query

bench-serve: $(VENV)/.dev ## the server against a bare handler, FastAPI and MLServer; a million classes (needs wrk)
	$(BIN)/python -m benchmarks.serve

bench-inputs: $(VENV)/.dev ## records, texts and gaps: public files against scikit-learn's pipelines, speeds, promises (files in $$STMS_RAW)
	$(BIN)/python -m benchmarks.inputs

bench-bundles: $(VENV)/.dev ## bundles of up to a million classes: seconds and memory of export, check and import
	$(BIN)/python -m benchmarks.bundles

bench-reach: $(VENV)/.dev ## local evaluation and its looks beside HTTP, revocation, gRPC beside V2, JavaScript and ONNX beside Python on every form
	$(BIN)/python -m benchmarks.reach

bench-cluster: $(VENV)/.dev ## two workers against one, job overhead, 10 000 classes, queries beside training (needs PostgreSQL)
	$(BIN)/python -m benchmarks.cluster

bench-dashboard: $(VENV)/.dev ## queries beside 20 open tabs, bytes and times of pages, the cost of traces (first paint needs chromium)
	$(BIN)/python -m benchmarks.dashboard

chaos: $(VENV)/.dev ## the whole service under 280 faults of 24 kinds, then an audit; some 20 minutes (needs PostgreSQL, best as root)
	$(BIN)/python -m benchmarks.chaos

bench-tuning: $(VENV)/.dev ## seconds of a search of scope job; the paper's tuning protocol, exhaustive and by successive halving
	$(BIN)/python -m benchmarks.tuning --job
	$(BIN)/python -m benchmarks.tuning

bench-rejections: $(VENV)/.dev ## students with 1 to 8 rejections: F beside the teacher, heads without data, time of a query (needs wrk)
	$(BIN)/python -m benchmarks.rejections
	$(BIN)/python -m benchmarks.rejections.heads
	$(BIN)/python -m benchmarks.rejections.queries

bench-learners: $(VENV)/.dev ## the other learners: solvers against their oracles, each family against its baselines
	$(BIN)/python -m benchmarks.learners

bench-defaults: $(VENV)/.dev ## jobs with default hyper-parameters against scikit-learn on thirds of training parts
	$(BIN)/python -m benchmarks.defaults

bench-budgets: $(VENV)/.dev ## whether jobs keep a budget of wall seconds, ten runs on letter (on a quiet machine)
	$(BIN)/python -m benchmarks.budgets

bench-false-positives: $(VENV)/.dev ## promised against actual false-positive rates on thirds of training parts
	$(BIN)/python -m benchmarks.false_positives

bench-train: $(VENV)/.dev ## training against LIBLINEAR, LinearSVC and CVXPY; time in n; peak memory
	$(BIN)/python -m benchmarks.training

bench-compact: $(VENV)/.dev ## compact students: F against the cost of a query on letter, satimage and mnist
	$(BIN)/python -m benchmarks.compact

hostile: $(VENV)/.dev ## some 1100 attacks on real servers, each with its one right answer (55 need chromium)
	$(BIN)/python -m benchmarks.hostile

safety: $(VENV)/.dev ## isolation, fairness, consistency, simulated schedules, power loss, fuzzing, scale, limits (needs PostgreSQL)
	$(BIN)/python -m benchmarks.safety

differential: $(VENV)/.dev ## 100 000 generated requests to the server of before known heads and to this one: the same answers
	$(BIN)/python -m benchmarks.differential

BEFORE ?= HEAD
AFTER  ?= .

digests: $(VENV)/.dev ## SHA-256 of what two versions train: make digests BEFORE=main [AFTER=commit], default HEAD against this folder
	$(BIN)/python -m benchmarks.digests $(BEFORE) $(AFTER)

bench-letter: $(VENV)/.dev ## seconds of jobs of letter at two versions by turns: make bench-letter BEFORE=main [AFTER=commit]
	$(BIN)/python -m benchmarks.letter_versions $(BEFORE) $(AFTER)

container-smoke: $(VENV)/.runtime ## build the image and do the main job in it (Docker or podman)
	$(BIN)/python -m container.smoke

compose-smoke: $(VENV)/.runtime ## bring the composition up, add and kill a worker, lose the database
	$(BIN)/python -m container.compose_smoke

sbom: $(VENV)/.dev ## bill of materials of the service (CycloneDX) from the lock file: sbom.json
	$(BIN)/python -m cyclonedx_py requirements --of JSON -o sbom.json requirements/runtime.txt

lock: ## resolve the requirements anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build -o requirements/runtime.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --all-extras -c requirements/runtime.txt -o requirements/dev.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build --extra oidc -c requirements/runtime.txt -c requirements/dev.txt -o requirements/oidc.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --extra build --extra grpc -c requirements/runtime.txt -c requirements/dev.txt -o requirements/grpc.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --group docs -c requirements/runtime.txt -c requirements/dev.txt -o requirements/docs.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header --group kubernetes -c requirements/runtime.txt -c requirements/dev.txt -o requirements/kubernetes.txt

clean: ## remove the environment and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
