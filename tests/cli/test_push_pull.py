"""``dpltm tickets push`` and ``pull``: what leaves, what comes in, and what is refused before anything is there.

Hostile folders are pulled in ``tests/attacks/test_ticket_folders.py``.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpltm.cli.next import after
from dpltm.options.tickets import PullRequest, PushRequest
from dpltm.tickets.export import SHARING_PRIVATE
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import load_ticket_set
from hub import FakeHub

SHARED = [
    "README.md",
    "lineage.json",
    "masks.safetensors",
    "predictors.safetensors",
    "theta0.safetensors",
    "tickets.json",
]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_there_and_back_by_the_hub(cli: Callable[..., Any], hub: FakeHub) -> None:
    pushed = cli("tickets", "push", "pub", "hf://me/tickets", "--json").json
    assert (hub.made, hub.commits) == ({"me/tickets": True}, [SHARED])  # private, in one commit
    got = cli("tickets", "pull", "hf://me/tickets@v1", "--digest", pushed["digest"], "--json").json
    assert (got["ticket_set"], got["id"], got["digest"]) == ("tickets.tickets", pushed["id"], pushed["digest"])
    assert problems(Path("tickets.tickets")) == []
    assert load_ticket_set(Path("tickets.tickets")).id == load_ticket_set(Path("pub")).id
    assert cli("train", "tickets.tickets@1", "--dataset", "digits", "--subset", "0.5:1.0", "--noise-multiplier", "1",
               "--steps", "2", "--out", "r", "--json").code == 0  # fmt: skip


def test_a_repository_that_everybody_may_read(cli: Callable[..., Any], hub: FakeHub) -> None:
    assert cli("tickets", "push", "pub", "hf://me/open", "--public", "--no-predictors", "--quiet").code == 0
    assert hub.made == {"me/open": False}
    assert hub.commits == [[name for name in SHARED if name != "predictors.safetensors"]]


def test_a_public_repository_that_was_there_gets_nothing_unless_asked(
    cli: Callable[..., Any], refused: Callable[..., str], hub: FakeHub
) -> None:
    hub.made["me/open"] = False
    assert refused("tickets", "push", "pub", "hf://me/open") == (
        "DEST: hf://me/open: everybody can read this repository; make it private there, or say --public"
    )
    assert hub.commits == []
    assert cli("tickets", "push", "pub", "hf://me/open", "--public", "--quiet").code == 0
    assert hub.commits == [SHARED]


def test_what_is_private_never_leaves(cli: Callable[..., Any], refused: Callable[..., str], hub: FakeHub) -> None:
    """The private set of the digits has accuracies beside it, and predictors in it."""
    assert refused("tickets", "push", "pri", "hf://me/pri", code=1) == (
        f"pri: {SHARING_PRIVATE}; if you mean to hand them on all the same, without predictors, add --yes"
    )
    assert hub.commits == []
    assert cli("tickets", "push", "pri", "hf://me/pri", "--yes", "--quiet").code == 0
    assert hub.commits == [[name for name in SHARED if name != "predictors.safetensors"]]
    sent = b"".join(hub.HfFileSystem().cat(f"me/pri/{name}") for name in hub.commits[0])
    accuracies = json.loads(Path("pri.private.json").read_text())["accuracy"].values()
    assert not any(repr(value).encode() in sent or f"{value:.4f}".encode() in sent for value in accuracies)
    assert cli("tickets", "pull", "hf://me/pri", "--out", "back", "--json").json["notes"][-1] == (
        "made from private records with no mechanism: nothing is certified for those"
    )


def test_who_won_stays_here_and_that_a_draw_was_made_goes(cli: Callable[..., Any], hub: FakeHub) -> None:
    drawn = ("--dataset", "digits", "--subset", "0.5:1.0", "--eps1", "1", "--score", "additive", "--quiet")
    assert cli("select", "pub", *drawn).code == 0
    done = cli("tickets", "push", "pub", "hf://me/drawn", "--json").json
    assert hub.commits == [SHARED]  # no winner.json
    assert cli("tickets", "pull", "hf://me/drawn", "--digest", done["digest"], "--quiet").code == 0
    assert load_ticket_set(Path("drawn.tickets")).lineage == load_ticket_set(Path("pub")).lineage
    assert len(load_ticket_set(Path("pub")).lineage.paid) == 1


def test_there_and_back_by_folders(cli: Callable[..., Any], cwd: Path) -> None:
    pushed = cli("tickets", "push", "pub", "out/shared", "--json").json
    assert sorted(path.name for path in (cwd / "out/shared").iterdir()) == SHARED
    for number, source in enumerate(("out/shared", f"file://{cwd}/out/shared")):
        got = cli("tickets", "pull", source, "--digest", pushed["digest"], "--out", f"got{number}", "--json").json
        assert got["id"] == pushed["id"]
        assert sorted(path.name for path in Path(f"got{number}").iterdir()) == SHARED


def test_what_a_push_is_refused_for(refused: Callable[..., str], hub: FakeHub, cwd: Path) -> None:
    push = functools.partial(refused, "tickets", "push")
    (cwd / "there").mkdir()
    assert push("pub@1", "x") == "SET@ROUND: push takes the whole set; leave @ROUND out"
    assert push("none", "x") == "none: no ticket set there; make one with dpltm generate --out none"
    assert push("pub", "there") == "DEST: there exists already; choose another name or remove it first"
    (cwd / "file").write_text("mine")
    assert push("pub", "file/x") == "DEST: cannot write to file: File exists; choose another place"
    assert push("pub", "hf://me/x@v1") == "DEST: hf://me/x@v1: sets are pushed to the main branch; leave @v1 out"
    for wrong in ("hf://me", "hf://me/x/y", "hf://../x", "hf://me/x?y"):
        assert push("pub", wrong) == f"DEST: {wrong}: not a repository; write hf://OWNER/NAME"
    for other in ("s3://me/x", "https://a.org/b"):
        assert push("pub", other) == (f"DEST: {other}: takes hf://OWNER/NAME and folders; fetch the set into a folder")
    hub.put("me/full/tickets.json", b"{}")
    assert push("pub", "hf://me/full") == "hf://me/full: holds a ticket set already; choose another name"
    hub.closed = True
    assert push("pub", "hf://me/x") == (
        "hf://me/x: 403 Forbidden: who are you?; check the name, the network and your login (hf auth login)"
    )
    assert hub.commits == []


def test_without_the_client(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    missing = "hf://: needs the package huggingface_hub; pip install 'dpltm[hub]'"
    assert refused("tickets", "push", "pub", "hf://me/x") == missing
    assert refused("tickets", "pull", "hf://me/x") == missing


def test_what_a_pull_is_refused_for(
    cli: Callable[..., Any], refused: Callable[..., str], hub: FakeHub, cwd: Path
) -> None:
    assert cli("tickets", "push", "pub", "out/shared", "--quiet").code == 0
    pull = functools.partial(refused, "tickets", "pull")
    assert pull("out/shared", "--digest", "ab") == (
        "--digest: not a SHA-256; give the 64 hexadecimal digits that dpltm tickets push printed"
    )
    stated = json.loads((cwd / "out/shared/tickets.json").read_text())["digest"]
    assert pull("out/shared", "--digest", "0" * 64) == (
        f"out/shared: its digest is {stated}, not the one expected; it was changed, or is another set"
    )
    nothing = "no ticket set there (no tickets.json); name one that was pushed"
    assert pull("out/none") == f"out/none: {nothing}"
    assert pull("hf://me/none") == f"hf://me/none: {nothing}"
    for other in ("https://me:secret@a.org/b", "memory::https://a.org/b"):
        assert pull(other).endswith(": takes hf://OWNER/NAME and folders; fetch the set into a folder")
    assert pull("out/..") == "--out is missing: out/.. ends in no name for a folder; give one"
    assert pull("out/shared", "--out", "pub") == "--out: pub exists already; choose another name or remove it first"
    hub.closed = True
    assert pull("hf://me/x").startswith("hf://me/x: 403 Forbidden: who are you?; check the name, ")


def test_sizes_are_bounded_by_what_the_description_claims(
    cli: Callable[..., Any], refused: Callable[..., str], hub: FakeHub, cwd: Path
) -> None:
    assert cli("tickets", "push", "pub", "out/shared", "--quiet").code == 0
    os.truncate(cwd / "out/shared/theta0.safetensors", 2**24)
    assert "bytes, where 0 to" in refused("tickets", "pull", "out/shared")
    hub.put("me/big/tickets.json", bytes(2**22))
    assert refused("tickets", "pull", "hf://me/big") == (
        "hf://me/big/tickets.json: more than the 2,097,152 bytes that it may have"
    )


def test_what_is_damaged_or_missing(
    cli: Callable[..., Any], refused: Callable[..., str], hub: FakeHub, cwd: Path
) -> None:
    assert cli("tickets", "push", "pub", "hf://me/x", "--quiet").code == 0
    card = hub.HfFileSystem().cat("me/x/README.md")
    hub.put("me/x/README.md", card + b"!")
    assert refused("tickets", "pull", "hf://me/x") == (
        "hf://me/x/README.md: not the card that was written with the set; edited or damaged"
    )
    hub.put("me/x/README.md", card)
    hub.HfFileSystem().rm("me/x/masks.safetensors")
    assert (
        refused("tickets", "pull", "hf://me/x")
        == "hf://me/x: masks.safetensors is missing; the set there is incomplete"
    )
    hub.put("me/x/tickets.json", b"[]")
    assert refused("tickets", "pull", "hf://me/x") == (
        "hf://me/x/tickets.json: not a document of format 'dpltm-ticket-set'"
    )
    (cwd / "link").mkdir()
    shutil.copytree("pub", "link/set")
    (cwd / "link/set/README.md").unlink()
    (cwd / "link/set/README.md").symlink_to("/etc/passwd")
    assert (
        refused("tickets", "pull", "link/set", "--out", "x") == "link/set/README.md: is a link, which is not followed"
    )


def test_what_else_lies_there_is_not_taken(cli: Callable[..., Any], hub: FakeHub) -> None:
    assert cli("tickets", "push", "pub", "hf://me/x", "--quiet").code == 0
    hub.put("me/x/ledger.jsonl", b"x")
    hub.put("me/x/winner.json", b"x")
    hub.put("me/x/run_me.py", b"x")
    assert cli("tickets", "pull", "hf://me/x", "--quiet").code == 0
    assert sorted(path.name for path in Path("x.tickets").iterdir()) == SHARED


@pytest.mark.usefixtures("hub")
def test_what_is_to_be_typed_next_can_be_typed(cli: Callable[..., Any]) -> None:
    pushed = cli("tickets", "push", "pub", "hf://me/next", "--no-predictors", "--json").json
    (line,) = after(PushRequest(set="pub", dest="hf://me/next"), pushed)
    pulled = cli(*shlex.split(line)[1:], "--json").json
    (line,) = after(PullRequest(source="hf://me/next"), pulled)
    ready = line.replace("PRIVATE", "digits --subset 0.5:1.0").replace(" E", " 1 --steps 2 --out r")
    assert cli(*shlex.split(ready)[1:], "--json").json["ticket_set"] == "next.tickets"
