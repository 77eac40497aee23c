# SPDX-License-Identifier: BSD-3-Clause
# The front door: everything goes through CMake presets underneath.
SHELL := /bin/bash
.DEFAULT_GOAL := release
PREFIX ?= /usr/local
LABELS := gaudi dmabuf detection ucm verification critical hca judges rdma tools copies ucx ipc
SOURCES := $(shell find abi include src ucx lab tools examples tests bench -name '*.hpp' -o -name '*.cpp' -o -name '*.h' -o -name '*.c')
# Tests run in a lab of their own, which goes when they are done.
CTEST := ctest --output-on-failure --no-tests=error --timeout 300
TEST_ENV = unset GAUDI_LAB GAUDI_LAB_ROOT GAUDI_LAB_TRACE GAUDI_LAB_FAULTS GAUDI_DIRECT_HLTHUNK GAUDI_DIRECT_VERBS HLS_MODULE_ID HABANA_VISIBLE_DEVICES HABANA_VISIBLE_MODULES;

.PHONY: release ucx setup setup-full build-% demo test test-full test-hardware suites build-headers fuzz bench install format format-check check-layers lint pictures reference help clean $(LABELS:%=test-%)

release: setup ## build what users install, into build/release/bin and build/release/lib
	@.ci/ucx || echo "ucx: not there, so the UCX plugin and its part of the demo are left out; make ucx tries again"
	@[ -f build/release/build.ninja ] || { echo "building: a minute or two the first time"; cmake --preset release >/dev/null; }
	@cmake --build build/release --target user -- --quiet

# What is missing is asked for in one round, UCX's needs with it; a machine that can build need not have those.
setup:
	@.ci/setup check || .ci/setup ucx

setup-full:
	@.ci/setup ucx lint

build-%:
	@[ -f build/$*/build.ninja ] || { echo "building preset $*: a minute or two the first time"; cmake --preset $* >/dev/null; }
	@cmake --build build/$* -- --quiet

demo: release ## two virtual Gaudis: copy across, RDMA between two hosts with every byte checked, ucx_perftest -m gaudi
	@$(TEST_ENV) examples/demo.sh build/release/bin .deps/ucx/1.23.0

test: setup ucx ## what CI runs: format, headers, warnings, all tests, the fast ones under ASan and UBSan; goes on after a failure
	@.ci/test

test-full: setup-full ucx ## also the slow campaigns, the thread sanitizer, clang, plugin and tools under the sanitizers, and the fuzzers
	@.ci/test full

# The suites that `gaudi-direct selftest` runs.
suites: release
	@cmake --build build/release --target suites -- --quiet

test-hardware: suites ## the suites that run anywhere, on this machine's free devices; a report in build/selftest.json
	@$(TEST_ENV) build/release/bin/gaudi-direct selftest --report build/selftest.json

build-headers:
	@[ -f build/release/build.ninja ] || cmake --preset release >/dev/null
	@cmake --build build/release --target check_headers -- --quiet

FUZZ_SECONDS ?= 200
fuzz: setup-full ## libFuzzer on handles, on what importers ask and on what owners answer, FUZZ_SECONDS each
	@[ -f build/fuzz/build.ninja ] || cmake --preset fuzz >/dev/null
	@cmake --build build/fuzz --target fuzzers -- --quiet
	@root=$$(mktemp -d /dev/shm/gaudi-fuzz-XXXXXX); trap "rm -rf $$root" EXIT; \
	 export GAUDI_LAB_ROOT=$$root GAUDI_DIRECT_HLTHUNK=$(CURDIR)/build/fuzz/lib/gaudi-direct/lab/libhl-thunk.so; \
	 for each in handle broker owner; do mkdir -p build/fuzz/corpus/$$each tests/fuzz/corpus/$$each; \
	 build/fuzz/bin/fuzz_$$each -max_total_time=$(FUZZ_SECONDS) -timeout=20 -verbosity=0 -print_final_stats=1 -artifact_prefix=build/fuzz/ \
	 build/fuzz/corpus/$$each tests/fuzz/corpus/$$each || exit 1; done

$(LABELS:%=test-%): test-%: setup ucx build-release ## the tests of one label
	@$(TEST_ENV) cd build/release && $(CTEST) -L '^$*$$'

bench: setup ucx ## measure; a table of figures, each with the limit of the same run
	@.ci/setup bench
	@cmake --preset release -DGAUDI_DIRECT_BENCH=ON >/dev/null && cmake --build build/release -- --quiet
	@build/release/bin/gaudi-direct lab run --lab bench --gaudis 1 --generation gaudi2 -- build/release/bin/bench_device_layer; \
	 status=$$?; build/release/bin/gaudi-direct lab clean bench; exit $$status
	@build/release/bin/gaudi-direct lab run --lab bench --gaudis 2 --generation gaudi2 -- build/release/bin/bench_connections; \
	 status=$$?; build/release/bin/gaudi-direct lab clean bench; exit $$status
	@build/release/bin/gaudi-direct lab run --lab bench --config bench/ipc.lab -- build/release/bin/bench_ipc; \
	 status=$$?; build/release/bin/gaudi-direct lab clean bench; exit $$status
	@build/release/bin/gaudi-direct lab run --lab bench --gaudis 2 --generation gaudi2 --hcas 1 --ucx .deps/ucx/1.23.0 -- build/release/bin/bench_ucx; \
	 status=$$?; build/release/bin/gaudi-direct lab clean bench; exit $$status
	@GAUDI_DIRECT_TOOL=$(CURDIR)/build/release/bin/gaudi-direct build/release/bin/gaudi-direct lab run --lab bench --gaudis 2 --generation gaudi2 -- build/release/bin/bench_hca; \
	 status=$$?; for lab in bench bench-local bench-remote; do build/release/bin/gaudi-direct lab clean $$lab; done; exit $$status

install: suites ## install under PREFIX (/usr/local)
	@cmake --install build/release --prefix '$(PREFIX)' >/dev/null
	@echo "installed under $(PREFIX); if the loader does not find libgaudi-direct.so.0, run ldconfig or set LD_LIBRARY_PATH=$(PREFIX)/lib"

pictures: ## make docs/pictures/*.svg from their .dot sources
	@.ci/setup docs
	@for source in docs/pictures/*.dot; do dot -Tsvg $$source -o $${source%.dot}.svg || exit 1; done

reference: ## the public headers as HTML in build/reference; fails where something public has no comment
	@.ci/setup docs
	@mkdir -p build/reference && doxygen docs/Doxyfile
	@! grep -vE 'Member (operator|.*&&|.*\((variable|enumvalue)\))' build/reference/warnings
	@echo "reference: build/reference/html/index.html"

format: setup ## format the sources in place
	@clang-format -i $(SOURCES)

format-check: setup
	@clang-format --dry-run -Werror $(SOURCES)

check-layers: ## includes that point upward, between the layers of the library and between library, lab and users
	@.ci/check-layers

ucx: ## stock UCX 1.22.0 and 1.23.0, fetched and unpacked under .deps/ucx
	@.ci/ucx || { echo "ucx: .ci/ucx failed, see above; 'make $(MAKECMDGOALS)' needs stock UCX under .deps/ucx and stops here" >&2; exit 1; }

lint: ## clang-tidy, and a build with the other compiler
	@.ci/setup lint
	@$(MAKE) --no-print-directory build-release build-clang
	@printf '%s\n' $(filter src/%.cpp ucx/%.cpp lab/%.cpp tools/%.cpp,$(SOURCES)) | xargs -P 2 -n 3 clang-tidy -p build/clang --quiet --extra-arg=-Wno-ignored-optimization-argument 2>/dev/null

clean: ## remove what was built
	@rm -rf build

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "make %-14s %s\n", $$1, $$2}'
	@echo "make test-LABEL     the tests of one label: $(LABELS)"
