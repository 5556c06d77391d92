# The two commands of a newcomer are `make demo` and `make test`. Both do all the set-up, are idempotent and say what they do.
JOBS ?= $(shell nproc)
BUILD := build/release
BENCH_DIR = $(or $(DIR),build)
# Looked up when it is used: setup_bench.sh may have made the first one by then.
BENCH_PYTHON = $$([ -x .cache/bench-venv/bin/python ] && echo .cache/bench-venv/bin/python || echo .venv/bin/python)

.PHONY: all setup program build test test-release test-asan test-tsan demo bench format tidy clean

all: build

setup:
	@tools/setup.sh

build/release/build.ninja: setup
	@mkdir -p build
	@cmake --preset release -Wno-dev > build/release.configure.log 2>&1 || { cat build/release.configure.log; exit 1; }

# The program alone.
program: build/release/build.ninja
	@cmake --build --preset release -j $(JOBS) --target strata

# The program, the examples, the CUDA plug-in where nvcc is found, and the tests.
build: build/release/build.ninja
	@cmake --build --preset release -j $(JOBS)

# Sanitizers first, so that the run closes with the summary of the whole suite.
test: test-asan test-tsan test-release

test-release: build
	@.venv/bin/python tools/gguf_to_hf.py --out .cache/smollm2
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

# Address and undefined-behaviour sanitizers over what needs no torch. The preset asan-torch covers the rest; it is not part of
# `make test`, because its build alone takes longer than everything else together.
test-asan: setup
	@mkdir -p build
	@cmake --preset asan -Wno-dev > build/asan.configure.log 2>&1 || { cat build/asan.configure.log; exit 1; }
	@cmake --build --preset asan -j $(JOBS)
	ctest --test-dir build/asan --output-on-failure -j $(JOBS)

# Thread sanitizer over what needs no torch.
test-tsan: setup
	@mkdir -p build
	@cmake --preset tsan -Wno-dev > build/tsan.configure.log 2>&1 || { cat build/tsan.configure.log; exit 1; }
	@cmake --build --preset tsan -j $(JOBS)
	ctest --test-dir build/tsan --output-on-failure -j $(JOBS)

demo: program
	@tools/demo.sh

# DIR is a folder on the drive in question. Without a compiler or network for DeepSpeed and the other optimizers the comparisons with
# them say why they are skipped; with it step_vs_deepspeed.py takes an hour or more.
bench: program
	@cmake --build --preset release -j $(JOBS) --target strata_adam_shared
	@$(BUILD)/bin/strata bench adam
	@$(BUILD)/bin/strata bench link
	@tools/setup_bench.sh || echo "bench: the other side is not installed; what needs it is left out"
	@$(BENCH_PYTHON) bench/adam_vs_peers.py --library $(BUILD)/bench/libstrata_adam_shared.so
	@$(BUILD)/bin/strata bench nvme --dir $(BENCH_DIR)
	@$(BENCH_PYTHON) bench/nvme_vs_deepspeed.py --dir $(BENCH_DIR)
	@$(BUILD)/bin/strata bench update --dir $(BENCH_DIR)
	@$(BUILD)/bin/strata bench step --dir $(BENCH_DIR) --hide
	@$(BENCH_PYTHON) bench/step_vs_deepspeed.py --dir $(BENCH_DIR) --hide
	@$(BUILD)/bin/strata bench step --nproc 2 --dir $(BENCH_DIR)
	@$(BENCH_PYTHON) bench/ranks_vs_peers.py --dir $(BENCH_DIR)

format:
	clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu')

tidy: build
	clang-tidy -p $(BUILD) --quiet $$(git ls-files 'src/*.cpp' 'nvme/*.cpp' 'offload/*.cpp' 'cpu_adam/*.cpp')

clean:
	rm -rf build
