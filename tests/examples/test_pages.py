"""Every block of the documents runs, in order, and prints what its page shows.

README.md and the quickstart run as they stand, and so does whatever shows what it prints. Elsewhere ``QUICKER`` makes
trainings short, ``INSTEAD`` changes a few words of a page, and made-up files stand for the reader's own and for published
datasets. Pages run with ``make proofs``, and README.md with short trainings in every run; that commands exist with such
options, ``tests/layout`` checks in every run. What does not run stands in ``NOT_RUN`` with the reason: that list may only
become shorter.
"""

import contextlib
import dataclasses
import json
import re
import runpy
import shlex
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from dpltm import PrivateLoop
from dpltm.cli.main import run
from dpltm.filters import FILTERS
from dpltm.privacy import ledger
from dpltm.privacy.ledger import Ledger
from dpltm.tickets.ledger_file import record_path
from pages import PAGES, ROOT, Reader, Step, shows, steps

AS_THEY_STAND = ("README.md", "quickstart.md")

QUICKER = (  # in every training of the other pages
    (r"--iterations \d+", "--iterations 10"),
    (r"--epochs \d+", "--epochs 1"),
    (r"--steps \d+", "--steps 10"),
    (r"--rounds (6|15)", "--rounds 1"),
    (r"--batch-size (\d{4,}|512)", "--batch-size 100"),
    (r"--features photographs(?!:)", "--features scatter:1,2"),
    (r"--lr ([\d.]+,[\d.]+),\S+", r"--lr \1"),
    (r" --subset 0:20000", ""),  # places mean something in the published files alone
    (r"--subset 0:5000", "--subset 0.0:0.8"),
    (r"--subset 5000:60000", "--subset 0.8:1.0"),
    (r"\biterations=\d+", "iterations=10"),
    (r"\bsteps=\d+", "steps=10"),
    (r"\btrials=\d+", "trials=40"),
)

INSTEAD = {  # page: words on it, and what is typed in their place
    "audits.md": {"SET": "digits.tickets@5", "--audit 5000": "--audit 100", "CANARIES": "100", "SEED": "0", "ROW": "--microbatch 8"},  # noqa: E501
    "recipes.md": {"--quick": "--quick --jobs 1"},
    "stages.md": {
        "--model mlp --features scatter": "--model mlp --features unit",
    },
}  # fmt: skip

MIXED_TABLE = re.compile(r"visits\.(toml|tickets|run)\b")
"""Commands of docs/data.md that run as long as they say, and whose answers are looked at."""

NOT_RUN = {  # page, and what a step on it is like: why
    ("quickstart.md", "git clone.*"): "needs the network; tests/layout/test_house.py installs the package",
    ("quickstart.md", "pip install.*"): "needs the network; tests/layout/test_house.py installs the package",
    ("stages.md", "torchrun.*"): "starts two processes; tests/cli/test_process.py starts some",
    ("python.md", "torch.distributed.*"): "is for two processes; tests/dpltm/training/test_ranks.py starts some",
    (
        "recipes.md",
        "dpltm run --config examples/papers/gdp-adult.toml",
    ): "takes minutes; the next line runs it quickly",
    ("recipes.md", "dpltm run --config examples/papers/gdp-adult.toml --scheduler.*"): "needs a cluster",
    ("reports.md", "dpltm demo.*"): "is what README.md runs; tests/cli/test_run_and_demo.py runs it",
}


# made-up files ----------------------------------------------------------------------------------------------------------


def images(count: int, side: int = 28, channels: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Digits of another size, and their labels."""
    digits = load_digits()
    grown = np.kron(digits.images[:count], np.ones((1, 4, 4)))[:, 2 : 2 + side, 2 : 2 + side]
    x = np.minimum(grown * 16, 255).astype(np.uint8)
    return (np.repeat(x[..., None], channels, axis=3) if channels else x), digits.target[:count]


def archive(path: Path, x: np.ndarray, y: np.ndarray, held_out: int = 0) -> None:
    """An ``.npz`` file of training records and perhaps test records."""
    split = len(x) - held_out
    test = {"x_test": x[split:], "y_test": y[split:]} if held_out else {}
    np.savez(path, x_train=x[:split], y_train=y[:split], **test)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data home with a few made-up records under the names of published datasets."""
    home, draw = tmp_path_factory.mktemp("published"), np.random.default_rng(0)
    x, y = images(460)
    for name, shade in (("mnist", 0), ("kmnist-7k", 1)):  # other records
        archive(home / f"{name}.npz", x ^ shade, y, held_out=60)
    archive(home / "cifar10-12k.npz", *images(200, channels=3), held_out=40)
    archive(home / "a9a.npz", draw.integers(0, 2, (32661, 123), dtype=np.uint8), np.arange(32661) % 2, held_out=100)
    archive(home / "isolet.npz", draw.uniform(-1, 1, (260, 617)).astype(np.float32), np.arange(260) % 26, held_out=52)
    texts = {}
    for split, count in (("train", 200), ("test", 50)):
        lengths = draw.integers(5, 20, count)
        values = draw.integers(0, 9999, lengths.sum()).astype(np.uint32)
        texts |= {
            f"values_{split}": values,
            f"offsets_{split}": np.cumsum([0, *lengths]),
            f"y_{split}": np.arange(count) % 2,
        }
    np.savez(home / "imdb.npz", **texts)
    return home


def people(path: Path, seed: int, first: int) -> None:
    """A table with five rows of each patient."""
    facts = np.random.default_rng(seed).random((300, 3)).round(3).tolist()
    rows = [[*row, first + number // 5, int(sum(row) > 1.5)] for number, row in enumerate(facts)]
    lines = ["age,weight,days,patient,ill", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def tables(folder: Path) -> None:
    """Tables and archives of the reader's own."""
    for seed, name in enumerate(("stays", "visits", "others")):
        people(folder / f"{name}.csv", seed, 100 * seed)
    text = (folder / "stays.csv").read_text(encoding="utf-8")
    (folder / "claims.csv").write_text(text.replace("patient,ill", "months,fraud"), encoding="utf-8")
    x, y = images(300)
    archive(folder / "scans.npz", x, y % 4, held_out=60)
    archive(folder / "photos.npz", *images(60, channels=3), held_out=10)
    np.savez(folder / "mine.npz", x_train=x, y_train=y)
    digits = load_digits()
    np.savez(folder / "private.npz", x_train=digits.images[:700].astype(np.uint8) ^ 1, y_train=digits.target[:700])
    np.savez(folder / "new.npz", x=digits.images[:5].astype(np.uint8))


def with_words(folder: Path) -> None:
    """The table that docs/data.md makes up some lines later."""
    with contextlib.chdir(folder):
        runpy.run_path(str(ROOT / "examples/visits.py"), run_name="__main__")


def typed(*commands: str) -> Callable[[Path], None]:
    """Commands that a page takes as done."""

    def before(_: Path) -> None:
        for command in commands:
            assert run([*shlex.split(command), "--quiet"]) == 0, command

    return before


def both(*parts: Callable[[Path], None]) -> Callable[[Path], None]:
    def before(folder: Path) -> None:
        for part in parts:
            part(folder)

    return before


def another_reader(folder: Path) -> None:
    """Somebody whose records are of other people: what was spent before is in no ledger of theirs."""
    for path in (*folder.glob("*ledger.jsonl"), record_path()):
        path.unlink(missing_ok=True)


HALF = "--dataset digits --subset 0.5:1.0"
SET = typed("generate --dataset digits --subset 0.0:0.5 --provenance public --iterations 10 --out digits.tickets")
KMNIST = typed("generate --dataset kmnist-7k --provenance public --model mlp:8 --iterations 10 --out kmnist.tickets")
OTHER = typed(f"train --dense {HALF} --model mlp:8 --epsilon 1 --steps 5 --ledger other.jsonl --out other.run")

BEFORE: dict[tuple[str, str], Callable[[Path], None]] = {  # page, and the step before which this is done
    ("accuracy.md", "dpltm train --dense --dataset mnist --features drawings"): another_reader,
    ("audits.md", "dpltm train SET"): SET,
    ("audits.md", "dpltm train --dense --dataset digits --model mlp:32"): another_reader,
    ("tickets.md", "dpltm tickets ls"): SET,
    ("tickets.md", "dpltm tickets import"): typed("tickets export digits.tickets@8 --out pruned.safetensors"),
    ("stages.md", "dpltm generate --dataset digits --subset 0.5:1.0 --criterion dp-train"): another_reader,
    ("stages.md", "dpltm select kmnist"): KMNIST,
    ("stages.md", "dpltm train --dataset mnist --config best.toml"): another_reader,
    ("stages.md", "dpltm evaluate digits.run"): typed(
        f"train --dense {HALF} --model mlp:8 --epsilon 1 --steps 5 --ledger other.jsonl --out digits.run"
    ),
    ("reports.md", "dpltm report demo"): both(
        SET, typed(f"train digits.tickets@3 {HALF} --epsilon 2 --steps 5 --out demo/run"), OTHER
    ),
    ("data.md", "dpltm datasets schema visits.csv --label"): both(another_reader, with_words),
    ("data.md", "python examples/visits.py"): another_reader,
    ("data.md", "dpltm train --dense --dataset visits.csv"): both(another_reader, tables),
    ("how-to.md", "dpltm train --dense --dataset scans.npz"): another_reader,
}


def given() -> dict[str, Any]:
    """Names that the blocks of code take as defined."""
    digits = load_digits()
    x, y = digits.data, digits.target
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    return {
        "x_public": x[:600], "y_public": y[:600], "x": x[600:1500], "y": y[600:1500], "x_test": x[1500:], "y_test": y[1500:],
        "torch": torch, "nn": nn, "PrivateLoop": PrivateLoop, "ledger": Ledger(),
        "folder": tempfile.mkdtemp(), "model": model,
        "loss": nn.CrossEntropyLoss(reduction="none"), "optimizer": torch.optim.SGD(model.parameters()),
    }  # fmt: skip


# the pages --------------------------------------------------------------------------------------------------------------


def as_typed(step: Step, short: bool = False) -> Step:
    """The step with other words and shorter trainings, where its page may have them, or any may: ``short``."""
    text = step.text
    for words, other in INSTEAD.get(step.page, {}).items():
        text = text.replace(words, other)
    if step.page == "data.md" and MIXED_TABLE.search(text):
        text += " --json"
    elif (short or step.page not in AS_THEY_STAND) and step.shown is None and not text.startswith("dpltm privacy"):
        for pattern, other in QUICKER:
            text = re.sub(pattern, other, text)
        if text.startswith("dpltm train ") and not re.search(r"--(steps|epochs|config|head least)", text):
            text += " --steps 10"
        if text.startswith("dpltm generate ") and "--iterations" not in text:
            text += " --iterations 10"
    return dataclasses.replace(step, text=text, words=shlex.split(text) if step.words else [])


def reason(step: Step) -> str | None:
    """Why a step is not run; None where it is."""
    found = (
        why for (page, like), why in NOT_RUN.items() if step.page == page and re.fullmatch(like, step.text, re.DOTALL)
    )
    return next(found, None)


@pytest.fixture
def reader(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Reader:
    """Somebody who types, in an empty folder beside the examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPLTM_DATA", str(published))
    monkeypatch.setenv("COLUMNS", "125")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    tables(tmp_path)
    return Reader(tmp_path, capfd)


@contextlib.contextmanager
def failures(said: list[str]) -> Iterator[None]:
    """A step whose failure is told with those of the others on its page."""
    try:
        yield
    except Exception as error:
        said.append("".join(traceback.format_exception_only(error)))


def in_a_new_process() -> None:
    """What a process keeps of records, each step has anew: a command is one, and so is a block of code."""
    ledger._of_process.clear()


@pytest.mark.parametrize(
    ("page", "short"),
    [
        pytest.param(ROOT / "README.md", True, id="README.md with short trainings"),
        *(pytest.param(page, False, marks=pytest.mark.long, id=page.name) for page in PAGES if steps(page)),
    ],
)
def test_a_page_runs_from_first_to_last(page: Path, short: bool, reader: Reader, tmp_path: Path) -> None:
    names, entries, before, wrong = given(), set(FILTERS), dict(BEFORE), list[str]()
    try:
        for step in steps(page):
            for where, begins in list(before):
                if where == step.page and step.text.startswith(begins):
                    before.pop((where, begins))(tmp_path)
            if reason(step) is None:
                in_a_new_process()
                with failures(wrong):
                    check_printed(step, reader.type(as_typed(step, short), names))
    finally:
        for name in set(FILTERS) - entries:
            FILTERS.pop(name)
    assert not wrong, "\n".join(wrong)
    assert not [each for each in before if each[0] == page.name], "no step begins so"


def check_printed(step: Step, out: str) -> None:
    """What a few blocks promise beyond what their pages show."""
    if "TicketClassifier" in step.text and step.page == "python.md":
        scored, validated, together = out.strip().splitlines()
        accuracy, certified = scored.split(" ", 1)
        assert float(accuracy) > 0.8
        assert re.match(r"Certified\(epsilon=0\.99\d+, delta=1e-05", certified)
        assert len(validated.strip("[]").split()) == 3
        assert 0.6 < float(together) <= 3 * 0.6
    if step.page == "data.md" and MIXED_TABLE.search(step.text):
        answer, (spent, near) = json.loads(out), SPENT[step.words[1]]
        if spent:
            assert answer["privacy"]["certified"]["epsilon"] == pytest.approx(spent, abs=near)
        if step.words[1] == "evaluate":
            trained = json.loads(Path("visits.run/result.json").read_text(encoding="utf-8"))
            assert trained["accuracy"] == answer["accuracy"] > 0.5, "55 % do not come back"


SPENT = {"datasets": (0.3, 6e-4), "generate": (0, 0), "select": (0.71, 0.02), "train": (2, 4e-3), "evaluate": (0, 0)}
"""What the commands on a mixed table come to, in their order, and how nearly."""


def test_what_does_not_run_says_why_and_becomes_less() -> None:
    """Every entry is of a step that there is; take out what can be run, and lower the number."""
    every = [step for page in PAGES for step in steps(page)]
    assert sum(reason(step) is not None for step in every) <= 7
    for page, like in NOT_RUN:
        assert any(step.page == page and re.fullmatch(like, step.text, re.DOTALL) for step in every), (page, like)
    for page, words in INSTEAD.items():
        for word in words:
            assert any(word in step.text for step in every if step.page == page), (page, word)
    assert [step.words[1] for step in every if step.page == "data.md" and MIXED_TABLE.search(step.text)] == list(SPENT)
    shown = [step for step in every if step.page in AS_THEY_STAND]
    assert {step.page for step in shown if step.shown} == set(AS_THEY_STAND)
    assert all(as_typed(step) == step for step in shown)


@pytest.mark.parametrize(
    ("expected", "found", "alike"),
    [
        ("a\nb", "a\nb\nc", False),
        ("a", "b\na", False),
        ("a\n...", "a", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd\nc", False),
        ("a\n...\nc\n...\nb", "a\nb\nc", False),
        ("epsilon = 0.993", "epsilon = 0.995", False),
        ("", "a", False),
    ],
)
def test_what_counts_as_shown(expected: str, found: str, alike: bool) -> None:
    assert shows(expected.splitlines(), found.splitlines()) is alike


def test_commands_and_what_they_print_are_told_apart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\ndpltm a --b \\\n    c    # why\nX=1 dpltm d\n```\n\nprints:\n\n```\nit's done\n```\n\n```python\nf()\n```\n"
    )
    first, second, third = steps(page)
    assert (first.line, first.words, first.shown) == (2, ["dpltm", "a", "--b", "c"], None)
    assert (second.words, second.shown) == (["X=1", "dpltm", "d"], ["it's done"])
    assert (third.text, third.words) == ("f()\n", [])
