"""What every test gets: configuration and cache folders of its own, one thread, and the data home where there is one."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ranked import Ranked

# Test processes run side by side (make test), and the programs that they start would each take every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# In tiles of AMX rows of bfloat16 see their neighbours, and pass one by one: test_leaving_out.py has that.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# The same examples in every run, and no time limit: a red test says something about the code, not about the day or machine.
SAME = settings(derandomize=True, database=None, deadline=None, max_examples=12)
settings.register_profile("dpltm", SAME, suppress_health_check=[HealthCheck.too_slow])
# make proofs: new examples in each run; a failing one is printed with the line that pins it
NEW = settings(settings.get_profile("dpltm"), derandomize=False, max_examples=200, print_blob=True)
settings.register_profile("explore", NEW)
settings.load_profile("dpltm")

SLOW = {"adversary", "examples", "golden", "workbench"}
SLOW |= {"test_process.py", "test_ranks.py", "test_run_and_demo.py", "test_sweep.py"}
"""Folders and files that take longest: whoever shares the work has the short ones left for the end."""


@pytest.hookimpl(tryfirst=True)  # before those that are long are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    met = Counter[object]()
    for item in items:
        if (one_of := item.get_closest_marker("one_of")) is not None:
            family = item.path, item.name.partition("[")[0]
            if met[family] % one_of.args[0]:
                item.add_marker(pytest.mark.long)
            met[family] += 1
    items.sort(key=lambda item: SLOW.isdisjoint(item.path.relative_to(Path(__file__).parent).parts))


def pytest_collection_finish() -> None:
    """Thousands of tests and what they import live to the end: no collection of garbage looks at them again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_config_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's list of ledgers and cached features out of the tests, in subprocesses too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config-home")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache-home")))
        # torch keeps compiled filters by source, whatever processor they are for
        if "ATEN_CPU_CAPABILITY" in os.environ:
            patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """No test cuts the power, and a command waits for the disk some twenty times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _own_ledger() -> None:
    """The ledger of the process is another one in each test."""
    if "dpltm.privacy.ledger" in sys.modules:
        sys.modules["dpltm.privacy.ledger"]._of_process.clear()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """These networks are tiny: a second thread only waits, for long where others use the machine.

    Test modules that use torch have imported it by now; the others are not made to.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A network that a test makes without a seed of its own is the same every time, in whatever order tests run."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def ranked() -> Iterator[Ranked]:
    """Starts ranks by forking; made once, since it imports everything first."""
    with Ranked() as started:
        yield started


@pytest.fixture(scope="session")
def data_home() -> Path:
    """The folder of dataset files. Skips where DPLTM_DATA is not set; a wrong setting is an error, not a skip."""
    value = os.environ.get("DPLTM_DATA")
    if not value:
        pytest.skip("DPLTM_DATA is not set: point it at a folder that holds mnist.npz and the other dataset files")
    home = Path(value)
    assert home.is_dir(), f"DPLTM_DATA={value} is not a folder"
    return home
