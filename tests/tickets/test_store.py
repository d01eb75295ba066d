"""Ticket sets by name: what stands for a set, for a round of one, and what a folder of them holds."""

import os
from pathlib import Path

import pytest

from dpltm.errors import InputError
from dpltm.privacy.entry import Lineage
from dpltm.tickets.store import listing, problems, split_round
from dpltm.tickets.ticket_set import save_winner
from dpltm.training.artifacts import Winner
from refusals import told
from set_entries import DRAWN, SAID


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("home")
def test_rounds():
    expected = {"a": ("a", None), "a@0": ("a", 0), "a@007": ("a", 7), "b/a.t@999999999": ("b/a.t", 999999999)}
    for text, parts in {**expected, "a@b@2": ("a@b", 2), "@2": ("", 2)}.items():
        assert split_round(text) == parts
    Path("a@3").mkdir()  # a folder with an @ in its name is that folder
    assert split_round("a@3") == ("a@3", None)
    assert split_round("a@3@2") == ("a@3", 2)


@pytest.mark.usefixtures("home")
def test_what_is_no_round():
    """A whole number of at most nine digits is; everything else is refused in one short line that says what to write."""
    for number in ("", "-1", "1e3", "+1", " 1", "1.0", "0x1", "1_0", "²", "9" * 10, "9" * 5000, "1/"):
        assert told(split_round, f"a@{number}", kind=InputError) == (
            f"SET@ROUND: {number[:40]!r} is not a round; write a whole number after @, such as a@10"
        )


@pytest.mark.usefixtures("home")
def test_listing(save):
    """What is damaged does not hide the others."""
    assert list(listing(Path())) == []
    for name in ("bundled:small", "a", "a\x1b[2Jb", "c\nd", "b", "d", "deeper/down"):
        save(Path(name))
    Path("other").mkdir()
    Path("file").write_text("no set")
    Path("self").symlink_to("self")
    Path("pipe").mkdir()
    os.mkfifo("pipe/tickets.json")
    Path("b/theta0.safetensors").unlink()
    Path("d/tickets.json").write_text("{")
    found = list(listing(Path()))
    whole, damaged = ["a", "'a\\x1b[2Jb'", "bundled:small", "'c\\nd'"], ["b", "d", "pipe"]
    assert sorted(entry.name for entry in found if entry.problem is None) == sorted(whole)
    assert sorted(entry.name for entry in found if entry.tickets is None) == damaged
    (entry,) = (entry for entry in found if entry.name == "a")
    assert entry.size == sum(len(path.read_bytes()) for path in Path("a").iterdir())
    why = "cannot be read: Not a directory; name a folder of ticket sets"
    assert told(lambda: list(listing(Path("file")))) == f"file: {why}"


@pytest.fixture
def healthy(tmp_path, save):
    saved = save(tmp_path / "s")
    save_winner(saved.path, Winner(2, Lineage((SAID, DRAWN)), saved))
    return saved


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])


def test_everything_that_is_wrong_is_told(healthy, raw):
    """Set, card and winner each, and what two checks find only once."""
    assert problems(healthy.path) == []
    flip(healthy.path / "README.md")
    path = healthy.path / "winner.json"
    raw.edit(path, signed=False, round=1)
    card, winner = problems(healthy.path)
    assert card == f"{healthy.path / 'README.md'}: not the card that was written with the set; edited or damaged"
    assert winner.startswith(f"{path}: the digest does not match")
    flip(healthy.path / "theta0.safetensors")  # with the set damaged, whose winner it is cannot be told
    first, *rest = problems(healthy.path)
    assert "the id does not match" in first
    assert rest == [card]
