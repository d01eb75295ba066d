"""Where the account of a dataset lies."""

from pathlib import Path

import pytest

from dpltm.tickets.ledger_file import ledger_path


def test_a_link_to_a_file_has_the_ledger_of_the_file(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "d.csv").write_text("x,label\n")
    (tmp_path / "b" / "d.csv").symlink_to(tmp_path / "a" / "d.csv")
    assert ledger_path(str(tmp_path / "b" / "d.csv")) == ledger_path(str(tmp_path / "a" / "d.csv"))
    assert ledger_path("d.csv") == Path("dpltm.ledger.jsonl")


@pytest.mark.parametrize(
    ("name", "ledger"),
    [("kmnist-7k", "kmnist"), ("har-raw", "har"), ("digits", "digits")],
)
def test_other_forms_of_a_dataset_have_one_ledger(name, ledger):
    """They are of the same people; made-up ones are of nobody."""
    assert ledger_path(name) == Path(f"{ledger}.ledger.jsonl")
