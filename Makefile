# Set-up lives in scripts/setup.sh, which does nothing where .venv is already up to date.
# The interpreter that makes .venv: make demo PYTHON=python3.12. More for pytest: make test ARGS='-k ledger -x'.
# Two processes share the tests; a debugger needs one: make test ARGS='-n 0 --pdb'.
PYTHON = python3
ARGS =
# Compiled tests and sources are kept: both processes, and whatever these start, would compile them again.
PYTEST = PYTHONDONTWRITEBYTECODE= .venv/bin/pytest

.NOTPARALLEL:
.PHONY: help demo test test-elsewhere proofs bench papers docs check clean distclean

help:
	@echo 'make demo            the three stages on a small dataset, in a virtual environment of its own (.venv)'
	@echo 'make test            the tests                           (ARGS=... goes to pytest)'
	@echo 'make proofs          the tests that take too long for that, and properties with new examples each time  (an hour; ARGS=...)'
	@echo 'make test-elsewhere  the same as on another processor    (hours: plain kernels, one thread, a quarter of its speed; ARGS=...)'
	@echo 'make bench           every promise about speed beside its goal, in one table (six minutes; nothing else should run; DPLTM_DATA)'
	@echo 'make papers          the quick version of every recipe of a paper (minutes; the test suite runs some)'
	@echo 'make docs            this documentation as a site in build/site (open build/site/index.html)'
	@echo 'make check           lint, formatting, types, spelling, and links of the documents  (ruff, mypy, codespell, mkdocs)'
	@echo 'make clean           remove what building and testing left behind'
	@echo 'make distclean       the same, and .venv too'
	@echo 'The first run installs everything into .venv with $(PYTHON); PYTHON=... names another interpreter.'

demo:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh run
	@.venv/bin/dpltm demo

test:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh test
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-elsewhere:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh test
	@sh scripts/other_processors.sh $(ARGS)

proofs:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh test
	$(PYTEST) -n 2 -m 'long or hypothesis' --hypothesis-profile=explore $(ARGS)

bench:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh test
	.venv/bin/python benchmarks/table.py

papers:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh test
	$(PYTEST) -n 2 -m '' tests/examples/test_papers.py $(ARGS)

docs:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh dev
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet
	@echo 'open build/site/index.html'

check:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@sh scripts/check_types.sh
	.venv/bin/codespell
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find dpltm tickets cli tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf .venv
