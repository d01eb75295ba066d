"""``dpltm tickets push`` and ``pull``: what leaves, what comes in, and what is refused before anything is there.

Hostile folders are pulled in ``tests/attacks/test_ticket_folders.py``; bad names are in ``test_refusals.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from commands import PRIVATE
from dpltm.tickets.export import SHARING_PRIVATE
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import load_ticket_set
from hub import FakeHub

SHARED = [
    *(
        "README.md",
        "lineage.json",
        "masks.safetensors",
        "predictors.safetensors",
        "theta0.safetensors",
        "tickets.json",
    ),
]
BARE = [name for name in SHARED if name != "predictors.safetensors"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_there_and_back_by_the_hub(cli, hub):
    """Who won stays here, and that a draw was made goes."""
    assert cli(f"select pub {PRIVATE} --eps1 1 --score additive").code == 0
    pushed = cli("tickets push pub hf://me/tickets --json").json
    assert (hub.made, hub.commits) == ({"me/tickets": True}, [SHARED])  # private, in one commit, no winner.json
    got = cli(f"tickets pull hf://me/tickets --digest {pushed['digest']} --json").json
    assert (got["ticket_set"], got["id"], got["digest"]) == ("tickets.tickets", pushed["id"], pushed["digest"])
    assert problems(Path("tickets.tickets")) == []
    there, back = (load_ticket_set(Path(name)) for name in ("pub", "tickets.tickets"))
    assert (there.id, there.lineage) == (back.id, back.lineage)
    assert len(there.lineage.paid) == 1
    last = got["tickets"][-1]["round"]
    assert cli(f"train tickets.tickets@{last} {PRIVATE} --epsilon 2 --steps 2 --out r").code == 0


def test_a_public_repository_that_was_there_gets_nothing_unless_asked(cli, refused, hub):
    hub.made["me/open"] = False
    assert refused("tickets push pub hf://me/open").startswith(
        "DEST: hf://me/open: everybody can read this repository"
    )
    assert hub.commits == []
    assert cli("tickets push pub hf://me/open --public --no-predictors").code == 0
    assert hub.commits == [BARE]


def test_what_is_private_never_leaves(cli, refused, hub):
    """The private set of the digits has accuracies beside it, and predictors in it."""
    assert refused("tickets push pri hf://me/pri", code=1).startswith(f"pri: {SHARING_PRIVATE}; ")
    assert hub.commits == []
    assert cli("tickets push pri hf://me/pri --yes").code == 0
    assert hub.commits == [BARE]
    sent = b"".join(hub.HfFileSystem().cat(f"me/pri/{name}") for name in hub.commits[0])
    accuracies = json.loads(Path("pri.private.json").read_text())["accuracy"].values()
    assert not any(repr(value).encode() in sent or f"{value:.4f}".encode() in sent for value in accuracies)
    assert "nothing is certified" in cli("tickets pull hf://me/pri --out back --json").json["notes"][-1]


def test_there_and_back_by_folders(cli, cwd, refused):
    pushed = cli("tickets push pub out/shared --json").json
    assert sorted(path.name for path in (cwd / "out/shared").iterdir()) == SHARED
    for number, source in enumerate(("out/shared", f"file://{cwd}/out/shared")):
        got = cli(f"tickets pull {source} --digest {pushed['digest']} --out got{number} --json").json
        assert got["id"] == pushed["id"]
        assert sorted(path.name for path in Path(f"got{number}").iterdir()) == SHARED
    said = refused(f"tickets pull out/shared --digest {'0' * 64}")
    assert said.startswith(f"out/shared: its digest is {pushed['digest']}")
    assert refused("tickets pull out/..").startswith("--out is missing: ")
    os.truncate("out/shared/theta0.safetensors", 2**24)
    assert "bytes, where 0 to" in refused("tickets pull out/shared")


def test_a_hub_that_is_full_closed_or_not_there(refused, hub, monkeypatch):
    hub.put("me/full/tickets.json", b"{}")
    assert refused("tickets push pub hf://me/full").startswith("hf://me/full: holds a ticket set already")
    hub.put("me/big/tickets.json", bytes(2**22))
    assert refused("tickets pull hf://me/big").startswith("hf://me/big/tickets.json: more than the 2,097,152 bytes")
    hub.closed = True
    for command in ("push pub hf://me/x", "pull hf://me/x"):
        assert refused(f"tickets {command}").startswith("hf://me/x: 403 Forbidden: who are you?; check the name, ")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for command in ("push pub hf://me/x", "pull hf://me/x"):
        assert refused(f"tickets {command}") == "hf://: needs the package huggingface_hub; pip install 'dpltm[hub]'"
    assert hub.commits == []


def test_what_is_damaged_missing_or_not_of_the_set(cli, refused, hub, cwd):
    assert cli("tickets push pub hf://me/x").code == 0
    for name in ("ledger.jsonl", "winner.json", "run_me.py"):
        hub.put(f"me/x/{name}", b"x")
    assert cli("tickets pull hf://me/x").code == 0
    assert sorted(path.name for path in Path("x.tickets").iterdir()) == SHARED
    card = hub.HfFileSystem().cat("me/x/README.md")
    hub.put("me/x/README.md", card + b"!")
    pull = "tickets pull hf://me/x --out y"
    assert refused(pull).startswith("hf://me/x/README.md: not the card that was written with the set")
    hub.put("me/x/README.md", card)
    hub.HfFileSystem().rm("me/x/masks.safetensors")
    assert refused(pull).startswith("hf://me/x: masks.safetensors is missing")
    hub.put("me/x/tickets.json", b"[]")
    assert refused(pull).startswith("hf://me/x/tickets.json: not a document of format ")
    (cwd / "link").mkdir()
    shutil.copytree("pub", "link/set")
    (cwd / "link/set/README.md").unlink()
    (cwd / "link/set/README.md").symlink_to("/etc/passwd")
    assert refused("tickets pull link/set --out y") == "link/set/README.md: is a link, which is not followed"
