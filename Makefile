# Each target makes the virtual environment .venv on first use, with any Python 3.11 to 3.13; tpu-check, test-clean,
# test-tf-2.19 and docs make one of their own.
.PHONY: quickstart test test-all test-slow test-core mutations attack test-clean test-tf-2.19 tpu-check tpu-check-recipes test-install docs docs-serve lint bench bench-growth bench-pretraining clean
.DELETE_ON_ERROR:
SHELL := /bin/bash

# The first interpreter that fits; `make PYTHON=/path/to/python3.12 test` names another.
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.13; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin

%/bin/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 was found; install one, or name it: make PYTHON=... $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $* || { rm -rf $*; echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu install python3-venv" >&2; exit 1; }

# The checkout itself is installed too, so that scripts in other folders can import it.
.venv/runtime: requirements.txt constraints.txt pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.venv/test: requirements-test.txt .venv/runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt
	@touch $@

.venv/development: requirements-dev.txt .venv/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# Text to a model that answers. Each command below is one that a user would run, on other text, for another model.
Q := quickstart
RECORDS = $(BIN)/official-bert make-records --vocab_file=$Q/vocab.txt --max_seq_length=64 --max_predictions_per_seq=13

# Not written again: another release of Python has other documentation, and the run keeps its text.
$Q/heldout.txt: | .venv/runtime
	$(BIN)/official-bert python-docs --output_file=$Q/text.txt --heldout_file=$@

quickstart: $Q/heldout.txt .venv/runtime
	$(BIN)/official-bert learn-vocabulary --input_file=$Q/text.txt --heldout_file=$Q/heldout.txt --vocab_file=$Q/vocab.txt \
		--vocab_size=4000
	$(RECORDS) --input_file=$Q/text.txt --output_file=$Q/train.tfrecord --masked_lm_prob=0.2
	$(RECORDS) --input_file=$Q/heldout.txt --output_file=$Q/heldout.tfrecord --dupe_factor=3
	$(BIN)/official-bert pretrain --flagfile=configs/quickstart.flagfile --do_train --do_eval --input_file=$Q/train.tfrecord \
		--eval_input_file=$Q/heldout.tfrecord --vocab_file=$Q/vocab.txt --output_dir=$Q/model
	$(BIN)/official-bert fill-mask --model_dir=$Q/model \
		"the method [MASK] called when the object is deleted ." \
		"if the file does [MASK] exist , an error is raised ." \
		"the function returns [MASK] if the string is empty ."

# Two processes of one thread each, whatever the machine: each takes two gigabytes or so. XLA would spend seconds on optimizing
# what runs for milliseconds; the slow tests run as users' programs do.
FAST_TENSORFLOW := TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 \
	XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

test: .venv/test
	$(FAST_TENSORFLOW) $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_FLAGS)

test-slow: .venv/development
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(PYTEST_FLAGS)

# All tests: those above, then the slow ones.
test-all: test test-slow

# Those of the slow tests that no change may go without: several devices, kills.
test-core: .venv/development
	$(BIN)/python -m pytest -n 2 --dist worksteal -m core $(PYTEST_FLAGS)

# Breaks one line at a time and expects tests to fail: three hours or so on two cores. MUTATIONS='--only=tokenization' for some.
mutations: .venv/development
	$(BIN)/python -m tools.robustness.mutations $(MUTATIONS)

# Kills, damaged files, contradictions, hostile requests: half an hour on two cores. ATTACK='--only=kills --seed=7 --minutes=5'
# for a part, which the seed repeats; --help says more.
attack: .venv/development
	$(BIN)/python -m tools.robustness.attack $(ATTACK)

# Exported models answer in an environment that has TensorFlow and tensorflow-text alone.
.venv-clean/ready: constraints.txt | .venv-clean/bin/python
	.venv-clean/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt tensorflow tensorflow-text
	@touch $@

test-clean: .venv/development .venv-clean/ready
	OFFICIAL_BERT_CLEAN_PYTHON=$(CURDIR)/.venv-clean/bin/python $(BIN)/python -m pytest -m "slow or not slow" \
		tests/test_every_interface.py -k without_this_package

# Pre-training on the TensorFlow of a TPU's host: the tests of what pretrain imports.
TF_2_19_TESTS := tests/modeling/fast/test_block_computation.py tests/modeling/test_config.py tests/modeling/test_dropout.py \
	tests/modeling/test_encoder.py tests/data tests/training/test_replica_step.py \
	tests/optimization tests/pretraining tests/tools/tpu_check tests/test_structure.py

.venv-tf-2.19/ready: requirements-tf-2.19.txt | .venv-tf-2.19/bin/python
	.venv-tf-2.19/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-tf-2.19.txt
	@touch $@

test-tf-2.19: .venv-tf-2.19/ready
	.venv-tf-2.19/bin/python -m pytest $(TF_2_19_TESTS)

# Whether a run fits a TPU, without one; CHECK is flags of pretrain, as far as its step depends on them.
CHECK ?= --bert_config_file=configs/models/uncased_L-12_H-768_A-12.json --train_batch_size=512 --dtype=bfloat16

.venv-tpu-check/ready: requirements-tpu-check.txt | .venv-tpu-check/bin/python
	.venv-tpu-check/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-tpu-check.txt
	@touch $@

tpu-check: .venv-tpu-check/ready
	.venv-tpu-check/bin/python -m tools.tpu_check $(CHECK)

# Every phase of the recipes in configs/, or of those named: make tpu-check-recipes RECIPES=--recipes=FILE.
tpu-check-recipes: .venv-tpu-check/ready
	.venv-tpu-check/bin/python -m tools.tpu_check.check_recipes $(RECIPES)

# Builds the wheel and uses it outside of the checkout, in a fresh environment for each Python that is here: the help of
# each command, a tiny run of pre-training, records. LOWEST=1 installs the lowest versions that pyproject.toml accepts, and
# also fine-tunes, exports, predicts and serves with them (3 GB).
I := .install
VERSIONS ?= 3.11 3.12 3.13

test-install: .venv/bin/python
	rm -rf build $I && mkdir $I
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir=$I .
	@set -e; found=; for version in $(VERSIONS); do \
		for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python none; do \
			"$$python" -c 'import venv' 2> /dev/null && break; done; \
		[ "$$python" = none ] && { echo "note: there is no Python $$version here"; continue; }; \
		found=yes; "$$python" -m venv $I/environment; \
		$I/environment/bin/python tests/install/use_installed.py $I $(if $(LOWEST),--lowest); \
		rm -rf $I/environment; \
	done; [ -n "$$found" ] || { echo "error: no Python of $(VERSIONS) was found" >&2; exit 1; }

# The documentation site, in docs/_build/html. Its environment has the site's packages alone and finds those that the
# pages import, such as TensorFlow, in .venv.
.venv-docs/ready: requirements-docs.txt .venv/runtime | .venv-docs/bin/python
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	path='import sysconfig; print(sysconfig.get_path("purelib"))'; \
		$(BIN)/python -c "$$path" > "$$(.venv-docs/bin/python -c "$$path")/runtime.pth"
	@touch $@

docs: .venv-docs/ready
	.venv-docs/bin/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "the site is in docs/_build/html; make docs-serve shows it"

docs-serve: docs
	.venv-docs/bin/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

lint: .venv/development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/development
	$(BIN)/python -m tools.benchmarks.generation --rounds=1
	$(BIN)/python -m tools.benchmarks.pretraining
	$(BIN)/python -m tools.benchmarks.finetuning
	$(BIN)/python -m tools.benchmarks.serving
	$(BIN)/python -m tools.benchmarks.prediction
	$(BIN)/python -m tools.benchmarks.startup --rounds=3

# How making records grows with the corpus and the number of workers.
bench-growth: .venv/development
	$(BIN)/python -m tools.benchmarks.generation
	$(BIN)/python -m tools.benchmarks.generation --sizes_mb=100,1000 --workers=2 --dupe_factor=1 --rounds=1

# Pre-training steps of larger models.
bench-pretraining: .venv/development
	$(BIN)/python -m tools.benchmarks.pretraining --size=mini
	$(BIN)/python -m tools.benchmarks.pretraining --size=small
	$(BIN)/python -m tools.benchmarks.pretraining --size=base --batch_size=8

clean:
	rm -rf .venv .install build *.egg-info .venv-clean .venv-tf-2.19 .venv-tpu-check .venv-docs docs/_build $Q
