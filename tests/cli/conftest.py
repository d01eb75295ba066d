"""How the command line is driven: in this process, in an empty folder, with everything it prints and writes caught."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import PRIVATE, PUBLIC, TINY, Done, made_by, words
from dpltm.cli.main import run
from dpltm.tickets.checkpoint_files import CheckpointFolder
from interruptions import ending, seeded_keys
from outputs import fixed_randomness
from probed import probed_once

__all__ = ["probed_once"]

OWN = "--ledger pri.jsonl"  # or nothing would be certified for the digits any more


@pytest.fixture(autouse=True)
def _same_draws(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test draws is a function of its name."""
    with fixed_randomness(request.node.nodeid):
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, _own_config_home: None) -> Path:
    """A folder with ``pub``, a public set from one half of the digits, and ``pri``, a private one from the other."""
    public = f"generate {PUBLIC} {TINY} --provenance public --out pub"
    private = f"generate {PRIVATE} {TINY} --provenance private {OWN} --out pri"
    return made_by(tmp_path_factory.mktemp("made"), public, private)


@pytest.fixture
def cwd(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the test, with both sets in it and nothing else; nobody remembers how far ledgers had come."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def cli(cwd: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs one command line, whose words may stand in one text; no traceback may show."""
    del cwd

    def call(*arguments: object) -> Done:
        capfd.readouterr()
        status = run(words(*arguments))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return Done(status, out, err)

    return call


@pytest.fixture
def stopped_at(cli: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a command that ends at the nth offer of a checkpoint, by ``how``."""

    def run(how: Callable[[], None], number: int, *command: object) -> Any:
        with ending(CheckpointFolder, "offer", number, how):
            return cli(*command)

    return run


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has the next release draw its keys from a seed."""
    return lambda number: seeded_keys(monkeypatch, number)


@pytest.fixture
def tree(cwd: Path) -> Callable[[], dict[str, bytes | None]]:
    """Every path under ``cwd`` (hidden ones too) with its bytes; folders have none."""
    return lambda: {
        str(path.relative_to(cwd)): path.read_bytes() if path.is_file() else None for path in sorted(cwd.rglob("*"))
    }


@pytest.fixture
def refused(cli: Callable[..., Done], tree: Callable[[], dict[str, bytes | None]]) -> Callable[..., str]:
    """Runs a command line that must be refused; returns its one line without ``error: ``.

    Not a byte under the working folder may change: no output, nothing half-written, no ledger that grew.
    """

    def call(*arguments: object, code: int = 2) -> str:
        before = tree()
        done = cli(*arguments)
        assert done.code == code, done
        assert done.out == ""
        assert done.err.count("\n") == 1
        assert done.err.startswith("error: ")
        assert tree() == before
        return done.err.removeprefix("error: ").removesuffix("\n")

    return call


@pytest.fixture
def entries() -> Callable[[str], list[dict[str, Any]]]:
    """The entries of a ledger file, read as plain JSON Lines."""

    def read(path: str) -> list[dict[str, Any]]:
        header, *lines = Path(path).read_text(encoding="utf-8").splitlines()
        assert json.loads(header)["format"] == "dpltm-ledger"
        return [json.loads(line)["entry"] for line in lines]

    return read
