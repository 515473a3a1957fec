# make demo and make test work on a fresh clone: each sets up .venv first.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
# Tests claim the device they need themselves; nothing is to be claimed for them by an installed provider.
# They start many interpreters, which is quicker with bytecode kept.
TEST_ENV := TORCH_DEVICE_BACKEND_AUTOLOAD=0 PYTHONDONTWRITEBYTECODE=
WORKERS ?= 2

NATIVE := setup.py pyproject.toml $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
MACA := $(shell find examples/maca_provider -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name '*.toml')

.PHONY: demo test opinfo soak lint format bench results clean

demo: $(VENV)/.ready
	$(BIN)/python examples/train_lm.py --device maca

test: $(VENV)/.ready
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

opinfo: $(VENV)/.ready
	for db in op module optimizer; do \
	  $(TEST_ENV) $(BIN)/python benchmarks/opinfo.py --db $$db --device maca $(ARGS) || exit; \
	done

soak: $(VENV)/.ready
	$(TEST_ENV) $(BIN)/python benchmarks/soak.py --operations 1000000 $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format --dry-run -Werror

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format -i

bench: $(VENV)/.ready
	$(TEST_ENV) $(BIN)/python benchmarks/bench_overhead.py $(ARGS)
	$(TEST_ENV) $(BIN)/python benchmarks/bench_device.py

# Writes what the README shows of a CPU, and the samples of operators, modules and optimizers.
results: $(VENV)/.ready
	$(TEST_ENV) $(BIN)/python benchmarks/opinfo.py --device maca --json benchmarks/results/opinfo-maca.json $(ARGS)
	$(TEST_ENV) $(BIN)/python benchmarks/opinfo.py --db module --device maca --json benchmarks/results/modules-maca.json $(ARGS)
	$(TEST_ENV) $(BIN)/python benchmarks/opinfo.py --db optimizer --device maca --json benchmarks/results/optimizers-maca.json $(ARGS)
	$(TEST_ENV) $(BIN)/python benchmarks/bench_device.py --json benchmarks/results/device-maca.json
	$(TEST_ENV) $(BIN)/python benchmarks/bench_step.py --json benchmarks/results/step-maca.json
	$(TEST_ENV) $(BIN)/python benchmarks/bench_overhead.py --json benchmarks/results
	$(BIN)/python benchmarks/report.py

clean:
	rm -rf $(VENV) build dist out *.egg-info tefl/*.so tefl/lib tefl/include tefl/_build.json tefl/kernels/cuda/fatbin

# The virtual environment that tefl is built in.
$(VENV)/.python: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$(TORCH)" numpy triton ninja "setuptools>=77" wheel
	touch $@

$(VENV)/.native: $(VENV)/.python $(NATIVE)
	# compat: a plain path, found even from the folder above the clone, where `tefl` is a folder of that name.
	$(BIN)/pip install -q --no-build-isolation --config-settings editable_mode=compat -e ".[test]"
	touch $@

# The example provider is installed as any vendor's package would be, next to tefl.
$(VENV)/.ready: $(VENV)/.native $(MACA)
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/pip install -q --no-build-isolation --no-deps --force-reinstall ./examples/maca_provider
	touch $@

$(VENV)/.lint: $(VENV)/.python
	$(BIN)/pip install -q ruff==0.17.6 mypy==2.4.1 clang-format==20.1.8
	touch $@
