# Everything is installed into .venv, from requirements.lock, once and again only when that or setup.cfg changes.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.ONESHELL:
.PHONY: help demo test fast-tests test-slow bench bench-full lint docs wheel lock clean system
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += -j2

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
INSTALLED := .venv/.installed
JARS := .jars/.complete
CLASSES := .venv/spark-classes.jsa
# Tests that wait run beside tests that compute; which of them share a worker, tests/conftest.py says. The longest come first by name.
WORKERS ?= 3
# If a worker dies, its test has failed. A worker in its place would make pytest-xdist wait for ever, or run its tests again and die, too.
PARALLEL := -n $(WORKERS) --no-loadscope-reorder --max-worker-restart 0
USES_S3 := $(filter test test-slow bench bench-full $(JARS),$(MAKECMDGOALS))$(STORE)
TESTS := $(filter test test-slow,$(MAKECMDGOALS))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where byte code is not written, each of hundreds of Python processes compiles the modules of this checkout anew.
unexport PYTHONDONTWRITEBYTECODE
# spark-submit looks for Spark by the first python3 of the PATH.
demo fast-tests test-slow bench bench-full $(CLASSES): private export PATH := $(CURDIR)/$(BIN):$(PATH)

help:  ## show this
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(INSTALLED) $(if $(STORE),$(JARS))  ## a real Airflow, a Spark driver killed half-way, a retry that goes on; STORE=s3: in S3
	@$(BIN)/python -m tests.support.demo $(STORE)

test: lint fast-tests  ## linters, types and all tests but the slow ones

fast-tests: $(INSTALLED) $(JARS) $(CLASSES)  # beside the linters: tests that wait leave time to them
	@echo "Testing"
	$(BIN)/pytest $(PARALLEL) -m "not slow"

test-slow: $(INSTALLED) $(JARS) $(CLASSES)  ## the slow tests
	@$(BIN)/pytest $(PARALLEL) -m slow

bench: $(INSTALLED) $(JARS) $(CLASSES)  ## measure what checkpoints cost, a few minutes; writes docs/inside/performance.md
	@$(BIN)/python -m benchmarks

bench-full: $(INSTALLED) $(JARS) $(CLASSES)  ## the same with large sizes and more rounds
	@$(BIN)/python -m benchmarks --full

lint: $(INSTALLED)  ## ruff and mypy
	@echo "Checking style and types"
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(INSTALLED)  ## make a site of the documentation; open build/docs/index.html
	@AIRFLOW_HOME="$(CURDIR)/build/airflow" $(BIN)/sphinx-build -q -W --keep-going docs build/docs
	echo "build/docs/index.html"

wheel: $(INSTALLED)  ## build the wheel into dist/
	@rm -rf build dist  # a left-over build/ would bring deleted modules back
	$(BIN)/pip wheel -q --no-deps --no-build-isolation -w dist .
	ls dist/*.whl

lock: $(INSTALLED)  ## write requirements.lock and tests/providers/*.txt anew; delete them first to upgrade everything
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --all-extras --no-annotate --generate-hashes \
	    --custom-compile-command "make lock" setup.cfg -o requirements.lock
	locked=($$(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements.lock))
	for provider in tests/providers/*.in; do  # only what they need besides: tests/support/providers.py installs both
	    left_out=("$${provider%.in}.overrides")
	    [ -e "$${left_out[0]}" ] && left_out=(--overrides "$${left_out[0]}") || left_out=()
	    $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-annotate --generate-hashes "$${locked[@]}" "$${left_out[@]}" \
	        --custom-compile-command "make lock" -c requirements.lock "$$provider" -o "$${provider%.in}.txt"
	done

clean:  ## remove .venv, caches and what was built
	@rm -rf .venv .jars .ceph .kafka .postgresql .postgresql-server .yarn .delta .iceberg .openlineage .sparks .providers build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Both compare each download with its hash in the lock file. uv takes half a minute, pip one and a half; uv does not read pip's configuration (a mirror, say), so pip is asked then.
$(INSTALLED): requirements.lock setup.cfg | system
	@echo "Creating .venv with $(PYTHON), installing $$(grep -c == requirements.lock) packages (1.2 GB)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-deps --require-hashes -r <(sed -n '/^uv==/,/[^\\]$$/p' requirements.lock)
	$(BIN)/uv pip install -q --compile-bytecode --no-deps --require-hashes -p $(BIN)/python -r requirements.lock \
	    || $(BIN)/pip install -q --no-deps --require-hashes -r requirements.lock
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	touch $@

$(JARS): tests/s3a/pom.xml tests/s3a/jars.sha256 | system
	@echo "Fetching the jars with which Spark reaches S3 into .jars (13 MB)"
	rm -rf .jars
	mvn -B -q -f tests/s3a/pom.xml dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/.jars"
	(cd .jars && sha256sum --quiet -c ../tests/s3a/jars.sha256)
	touch $@

$(CLASSES): $(INSTALLED) tests/support/classes.py
	@echo "Recording the classes of a Spark driver: the tests' drivers start in half the time with them (180 MB)"
	$(BIN)/python -m tests.support.classes $@

# What pip cannot bring: Java 17 or newer for Spark, the venv module, ps, Maven for Spark's jars for S3, and a browser for the tests. Nothing is touched where they are there.
system:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	need=()
	java=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' || true)
	[ "$${java:-0}" -ge 17 ] || need+=(java)
	[ -z "$(USES_S3)" ] || [ -e $(JARS) ] || command -v mvn >/dev/null || need+=(maven)
	[ -z "$(TESTS)" ] || command -v chromium >/dev/null || need+=(chromium)
	command -v ps >/dev/null || need+=(procps)
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || need+=("$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
	[ $${#need[@]} -gt 0 ] || exit 0
	command -v apt-get >/dev/null || { echo "Please install, then run make again: $${need[*]}" >&2; exit 1; }
	echo "Installing with apt-get: $${need[*]}"
	[ "$$(id -u)" = 0 ] && as_root=() || as_root=(sudo)
	"$${as_root[@]}" apt-get -qq update
	for jre in openjdk-17-jre-headless openjdk-21-jre-headless; do  # what there is differs from release to release
	    ! apt-cache show "$$jre" >/dev/null 2>&1 || break
	done
	need=("$${need[@]/#java/$$jre}")
	"$${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$${need[@]}" >/dev/null
