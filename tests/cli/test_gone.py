"""What this version has not any more is refused by its name, with what to do instead; what it made is still read.

Kept as long as ``dpltm/options/gone.py`` is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpltm
from commands import PRIVATE, PUBLIC, TINY
from dpltm.errors import DataError, InputError
from dpltm.networks import ModelSpec
from dpltm.options.gone import GONE
from dpltm.privacy import gdp
from dpltm.privacy.entry import Entry, Lineage
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.records import load
from dpltm.tickets import open_ledger
from dpltm.tickets.ticket_set import load_ticket_set
from set_entries import MOMENTS
from sets import store_set

TABLE = f"""
--criterion dp-energy    | generate {PRIVATE} {TINY} --criterion dp-energy --epsilon 1 --out new
--criterion dp-synthetic | generate {PRIVATE} {TINY} --criterion dp-synthetic --epsilon 1 --out new
--criterion energy       | generate {PRIVATE} {TINY} --criterion energy --provenance public --out new
datasets overlap         | datasets overlap a.csv b.csv --label y
generate --pool          | generate {PRIVATE} {TINY} --pool 4 --provenance public --out new
synthesize               | synthesize --dataset digits --epsilon 1 --out new.npz
"""
"""What is gone, as ``GONE`` has it, and a command that asks for it."""

ROWS = [tuple(part.strip() for part in line.split("|")) for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("name", "command"), ROWS)
def test_at_the_terminal(refused: Callable[..., str], name: str, command: str) -> None:
    assert f"{name.removeprefix('generate ')} is gone since 0.3: " in refused(command)


def test_every_row_is_asked_for() -> None:
    assert {name for name, _ in ROWS} == set(GONE)


@pytest.mark.parametrize("name", ["synthesize"])
def test_names_of_the_package(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^dpltm.{name} is gone since 0.3: "):
        getattr(dpltm, name)
    assert name not in dir(dpltm)


@pytest.mark.parametrize("options", [{"criterion": "dp-synthetic", "epsilon": 1.0}])
def test_values_of_options_in_python(options: dict[str, Any]) -> None:
    x = np.zeros((40, 4), np.uint8)
    with pytest.raises(InputError, match=f"`criterion` {options['criterion']} is gone since 0.3: "):
        dpltm.generate(x, np.arange(40) % 2, ledger=dpltm.Ledger(), **options)


def test_values_of_options_in_a_file(refused: Callable[..., str], cwd: Path) -> None:
    (cwd / "a.toml").write_text('[generate]\ncriterion = "dp-synthetic"\nepsilon = 1.0\n')
    assert "--criterion dp-synthetic is gone since 0.3: " in refused(f"generate {PRIVATE} --config a.toml --out new")


def test_options_in_python_and_in_a_file(refused: Callable[..., str], cwd: Path) -> None:
    with pytest.raises(InputError, match=r"^`pool` is gone since 0\.3: "):
        dpltm.generate(np.zeros((40, 4), np.uint8), np.arange(40) % 2, provenance="public", pool=4)
    (cwd / "a.toml").write_text("[generate]\npool = 4\n")
    assert "pool is gone since 0.3: " in refused(f"generate {PUBLIC} --provenance public --config a.toml --out new")


# --- what such commands made ---


@pytest.mark.parametrize("array", ["lineage", "synthetic_origin"])
def test_files_of_synthetic_records_are_not_read_as_others(tmp_path: Path, array: str) -> None:
    """Read as records that somebody calls public, they would hide the release that they come from."""
    path, arrays = tmp_path / "made.npz", {"x_train": np.zeros((40, 4), np.float32), "y_train": np.arange(40) % 2}
    np.savez(path, **arrays)
    assert load(str(path), bounds=(0, 1)).records == 40
    np.savez(path, **arrays, **{array: np.frombuffer(b"{}", np.uint8)})
    with pytest.raises(DataError, match=r"made\.npz: synthetic records that dpltm made before 0\.3"):
        load(str(path), bounds=(0, 1))


def test_entries_of_them_are_priced(cli: Callable[..., Any]) -> None:
    """A Gaussian mechanism is mu-GDP with mu = 1/sigma, whose epsilon is exact (Dong, Roth, Su 2022, Cor. 2.13)."""
    ledger = open_ledger("l.jsonl")
    words = "counts, sums and second moments of norm-bounded records, for synthetic ones"
    ledger.declare(Entry("release", mechanisms=(GaussianRelease(4.0, 9 / 8),), words=words))
    body = cli("privacy ledger l.jsonl --delta 1e-4 --json").json
    assert gdp.delta(body["privacy"]["certified"]["epsilon"], 1 / 4) == pytest.approx(1e-4, rel=1e-2)
    assert words in " ".join(cli("privacy ledger l.jsonl --delta 1e-4").out.split())


@pytest.mark.parametrize("criterion", ["dp-energy", "dp-synthetic"])
def test_sets_of_them_are_read_with_the_release_behind_them(tmp_path: Path, criterion: str) -> None:
    body = without_data(ModelSpec("mlp:6", 7, 3), GenerationConfig(rounds=2, criterion="random"))
    store_set(
        tmp_path / "s", body, name="n", criterion=criterion, provenance="dp", config={}, made_from=Lineage((MOMENTS,))
    )
    tickets = load_ticket_set(tmp_path / "s")
    assert (tickets.criterion, tickets.provenance, tickets.lineage.entries) == (criterion, "dp", (MOMENTS,))
