"""The folder of a sweep that somebody else filled: links are refused, damage is named, and what it shows is what is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from child_processes import PATIENCE
from dpltm.errors import ArtifactError
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.sweep_plot import Line, draw, over_steps

LABEL = "an-arm-s3-01234567"
BODY: dict[str, Any] = {
    "arm": "An arm!",
    "seed": 3,
    "digest": "01234567" + "89abcdef" * 7,
    "train": {"accuracy": 0.5, "privacy": {"certified": {"epsilon": 1.0}}},
}
LINE = Line("x", (1, 2), (0.5, 0.6), (0.4, 0.5), (0.6, 0.7), (1.0, 2.0), "2")


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "s", "T", "one")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder that is none of the sweep's business, with a file in it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("kept")
    return tmp_path / "other"


def one_line(error: pytest.ExceptionInfo[ArtifactError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# links, pipes


def test_a_lock_that_is_a_link(folder: SweepFolder, other: Path) -> None:
    (folder.root / "locks/m.lock").symlink_to(other / "kept")
    with pytest.raises(ArtifactError, match=r"m\.lock.*link.*remove it") as error, folder.lock("m"):
        pass
    one_line(error)
    assert (other / "kept").read_text() == "kept"
    with pytest.raises(ArtifactError, match=r"m\.lock"):  # before anything starts
        SweepFolder(folder.root, "T", "two")


def test_a_lock_that_is_a_link_to_nothing(folder: SweepFolder, other: Path) -> None:
    (folder.root / "locks/m.lock").symlink_to(other / "new")
    with pytest.raises(ArtifactError, match=r"m\.lock.*link"), folder.lock("m"):
        pass
    assert not (other / "new").exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file(folder: SweepFolder, make: Callable[[Path], None]) -> None:
    path = folder.root / "locks/m.lock"
    make(path)
    code = (
        "import sys; from pathlib import Path; from dpltm.tickets.sweep_files import SweepFolder\n"
        "folder = object.__new__(SweepFolder); folder.root = Path(sys.argv[1])\n"
        "with folder.lock('m'): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder.root)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "ArtifactError" in done.stderr
    assert "remove it" in done.stderr
    with pytest.raises(ArtifactError, match=r"m\.lock.*remove it"):
        SweepFolder(folder.root, "T", "two")


def test_a_lock_is_one_process_alone(folder: SweepFolder) -> None:
    with folder.lock("m") as first, folder.lock("m") as second:
        assert (first, second) == (True, False)
    with folder.lock("m") as third:
        assert third


def test_a_lock_can_be_waited_for(folder: SweepFolder) -> None:
    asked = threading.Event()
    order: list[str] = []

    def other() -> None:
        asked.set()
        with folder.lock("m", wait=True) as mine:
            order.append(f"second: {mine}")

    thread = threading.Thread(target=other)
    with folder.lock("m"):
        thread.start()
        assert asked.wait(PATIENCE)
        order.append("first")
    thread.join(PATIENCE)
    assert order == ["first", "second: True"]


def test_ledgers_of_trials_and_of_ticket_sets_are_all_counted(folder: SweepFolder) -> None:
    """Whether anything came of them or not."""
    names = ["members/m0/ledger.jsonl", "members/m0/ledger-attempt-1.jsonl", "tickets/a/ledger.jsonl",
             "tickets/b.ledger.jsonl"]  # fmt: skip
    for name in names:
        (folder.root / name).parent.mkdir(exist_ok=True)
        (folder.root / name).touch()
    assert {str(path.relative_to(folder.root)) for path in folder.all_ledgers()} == set(names)


def test_a_link_among_the_members_is_found_when_the_folder_is_opened(folder: SweepFolder, other: Path) -> None:
    """Whether it is a member's or nobody's: what all cost is read from every one of them."""
    (folder.root / "members/stray").symlink_to(other)
    with pytest.raises(ArtifactError, match=r"stray: is a link"):
        SweepFolder(folder.root, "T", "later")


def test_a_member_that_is_a_link(folder: SweepFolder, other: Path) -> None:
    folder.trial(LABEL).symlink_to(other)
    for ask in (folder.begin, folder.result, folder.ledgers, folder.trial):
        with pytest.raises(ArtifactError, match=rf"{LABEL}.*link.*remove it") as error:
            ask(LABEL)
        one_line(error)
    assert [path.name for path in other.iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["run", "tickets", "ledger.jsonl"])
def test_a_link_in_a_member(folder: SweepFolder, other: Path, name: str) -> None:
    folder.begin(LABEL)
    (folder.trial(LABEL) / name).symlink_to(other / "new")
    with pytest.raises(ArtifactError, match=rf"{name}.*link.*remove it"):
        SweepFolder(folder.root, "T", "two").begin(LABEL)


@pytest.mark.parametrize("part", ["members", "tickets", "tune", "locks", "failed", "times"])
def test_a_part_that_is_a_link(folder: SweepFolder, other: Path, part: str) -> None:
    (folder.root / part).rmdir()
    (folder.root / part).symlink_to(other)
    with pytest.raises(ArtifactError, match=rf"/{part}.*link.*remove it") as error:
        SweepFolder(folder.root, "T", "two")
    one_line(error)


def test_a_head_that_is_a_link(folder: SweepFolder, other: Path) -> None:
    (folder.root / "recipe.json").rename(other / "recipe.json")
    (folder.root / "recipe.json").symlink_to(other / "recipe.json")
    for part in ("members", "tickets", "tune", "locks", "failed", "times"):
        (folder.root / part).rmdir()
    with pytest.raises(ArtifactError, match=r"recipe\.json.*link"):
        SweepFolder(folder.root, "T", "two")
    assert [path.name for path in folder.root.iterdir()] == ["recipe.json"]  # nothing was made


def test_a_figure_that_is_a_link(tmp_path: Path, other: Path) -> None:
    (tmp_path / "figure.png").symlink_to(other / "kept")
    draw(tmp_path / "figure.png", [LINE], title="T", x="x", measure="accuracy", steps=True, log=False)
    assert (other / "kept").read_text() == "kept"
    assert not (tmp_path / "figure.png").is_symlink()
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.png", "other"]


def test_a_figure_that_fails_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "figure.png").write_text("earlier")
    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(KeyboardInterrupt):
        draw(tmp_path / "figure.png", [LINE], title="T", x="x", measure="accuracy", steps=True, log=False)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("figure.png", "earlier")]


def test_text_is_not_written_through_a_name_that_can_be_guessed(folder: SweepFolder, other: Path) -> None:
    for name in ("results.md", f".results.md.{os.getpid()}"):
        (folder.root / name).symlink_to(other / "kept")
    folder.write_text("results.md", "new")
    assert (other / "kept").read_text() == "kept"
    assert (folder.root / "results.md").read_text() == "new"
    assert (folder.root / "results.md").stat().st_mode & 0o777 == 0o644


def test_text_that_cannot_be_written(folder: SweepFolder) -> None:
    (folder.root / "results.md").mkdir()
    before = sorted(folder.root.iterdir())
    with pytest.raises(ArtifactError, match=r"results\.md: cannot be written"):
        folder.write_text("results.md", "new")
    assert sorted(folder.root.iterdir()) == before


# results


def put(folder: SweepFolder, body: dict[str, Any]) -> None:
    folder.trial(LABEL).mkdir(exist_ok=True)
    folder.finish(LABEL, body)


@pytest.mark.parametrize("epsilon", [0, 1.5, "inf"])
def test_a_result(folder: SweepFolder, epsilon: object) -> None:
    assert folder.result(LABEL) is None
    put(folder, {**BODY, "train": {"privacy": {"certified": {"epsilon": epsilon}}}})
    found = folder.result(LABEL)
    assert found is not None
    assert found["train"]["privacy"]["certified"]["epsilon"] == epsilon


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train", None), ("train", []), ("train", {}), ("train", {"privacy": None}), ("train", {"privacy": {}}),
        *(("train", {"privacy": {"certified": {"epsilon": value}}}) for value in (None, "nan", "1", True, -1, [])),
        ("seed", 4), ("seed", "3"), ("seed", None), ("digest", "f" * 64), ("digest", None), ("digest", "01234567"),
        ("arm", "another"), ("arm", None), ("arm", 1),
    ],
)  # fmt: skip
def test_a_result_that_is_damaged(folder: SweepFolder, key: str, value: object) -> None:
    put(folder, {**BODY, key: value})
    with pytest.raises(ArtifactError, match=r"result\.json: .*remove it, and the member is run again") as error:
        folder.result(LABEL)
    assert str(folder.trial(LABEL) / "result.json") in one_line(error)


def test_how_long_a_member_took_is_its_makers_to_know(folder: SweepFolder) -> None:
    assert folder.work(LABEL) is None
    folder.took(LABEL, 1.5, 2)
    assert folder.work(LABEL) == 3.0
    path = folder.root / "times" / f"{LABEL}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not folder.trial(LABEL).exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("work_seconds", None), ("work_seconds", "1"), ("work_seconds", -1), ("work_seconds", 10**400),
        ("threads", None), ("threads", True), ("threads", -1),
    ],
)  # fmt: skip
def test_a_time_that_is_damaged_is_none(folder: SweepFolder, key: str, value: object) -> None:
    folder.took(LABEL, 1.5, 2)
    path = folder.root / "times" / f"{LABEL}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert folder.work(LABEL) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "dpltm-sweep-result", "schema": 1}'])
def test_a_result_that_was_cut_off(folder: SweepFolder, text: str) -> None:
    put(folder, BODY)
    (folder.trial(LABEL) / "result.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"result\.json: .*remove it, and the member is run again"):
        folder.result(LABEL)


@pytest.mark.parametrize("name", ["a", "Größe 5 % (2.5)", "...", "%", "-.a.-", "a" * 100, "x-s1-", "5e-4 / 0.1"])
def test_results_of_arms_of_any_name(folder: SweepFolder, name: str) -> None:
    from dpltm.experiments.recipe import slug

    label = f"{slug(name)}-s3-01234567"
    folder.begin(label)
    folder.finish(label, {**BODY, "arm": name})
    assert folder.result(label) is not None


# figures


def texts(monkeypatch: pytest.MonkeyPatch, path: Path, line: Line, steps: bool, measure: str = "accuracy") -> str:
    """All words of a figure."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    found: list[str] = []
    save = Figure.savefig

    def saved(self: Figure, *given: object, **named: object) -> None:
        save(self, *given, **named)
        found.extend(text.get_text() for text in self.findobj(Text))

    monkeypatch.setattr(Figure, "savefig", saved)
    draw(path, [line], title="title $\\foo$", x="x $\\foo$", measure=measure, steps=steps, log=True)
    assert path.read_bytes().startswith(b"\x89PNG")
    return "\n".join(found)


@pytest.mark.parametrize("epsilon", [1.0, float("inf")])
@pytest.mark.parametrize("steps", [True, False])
def test_no_name_is_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: bool, epsilon: float) -> None:
    certified = Line("other", (1, 2), (0.5, 0.6), (0.4, 0.5), (0.6, 0.7), (1.0, 2.0), "at $\\foo$")
    line = Line("arm $\\foo$", (1, 2), (0.5, 0.6), (0.4, 0.5), (0.6, 0.7), (epsilon, epsilon), "at $\\foo$")
    words = texts(monkeypatch, tmp_path / "f.png", line, steps)
    for part in ("title", "x", "arm"):
        assert f"{part} $\\foo$" in words
    draw(tmp_path / "g.png", [line, certified], title="$\\foo$", x="$\\foo$", measure="rmse", steps=steps, log=False)


def test_a_figure_says_what_its_bands_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "least to most of the seeds" in texts(monkeypatch, tmp_path / "a.png", LINE, True)
    monkeypatch.undo()
    assert "95 % interval" in texts(monkeypatch, tmp_path / "b.png", LINE, False)


def test_what_diverged_can_be_drawn(tmp_path: Path) -> None:
    line = Line("x", (1, 2), (1.0, float("inf")), (1.0, 2.0), (1.0, float("inf")), (1.0, 2.0), "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(tmp_path / "f.png", [line], title="T", x="x", measure="rmse", steps=True, log=False)


def noted(folder: Path, *lines: tuple[int, float | str, float | str]) -> Path:
    folder.mkdir()
    text = "".join(json.dumps({"step": s, "epsilon": e, "accuracy": a}) + "\n" for s, e, a in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


@pytest.mark.parametrize("turned", [False, True])
def test_epsilon_of_a_line_is_the_largest_of_its_runs(tmp_path: Path, turned: bool) -> None:
    runs = [noted(tmp_path / "a", (1, 0.5, 0.2), (2, "inf", 0.6)), noted(tmp_path / "b", (1, 0.75, 0.4), (2, 1, 0.8))]
    line = over_steps("x", runs[::-1] if turned else runs, "accuracy", "1")
    assert line is not None
    assert list(line.epsilon) == [0.75, float("inf")]


GOOD = '{"step": 1, "epsilon": 9.0, "accuracy": 0.9}\n'


@pytest.mark.parametrize(
    "damage",
    [
        None, "", "{", GOOD + '{"step": 2, "eps', "[]\n", "1\n", "[" * 100_000, GOOD + "\xff\n",
        *(GOOD.replace("9.0", value) for value in ("null", '"x"', "NaN", "true", "[]", '"9.0"', "1" * 5000)),
        *(GOOD.replace("0.9", value) for value in ('"x"', "NaN", "true", "{}")),
        *(GOOD.replace(": 1,", f": {value},") for value in ("null", '"1"', "1.5", "true", "[]")),
        GOOD.replace('"step"', '"stop"'), GOOD.replace('"epsilon"', '"e"'),
    ],
)  # fmt: skip
def test_a_run_that_is_damaged_is_left_out(tmp_path: Path, damage: str | None) -> None:
    runs = [noted(tmp_path / "a", (1, 0.5, 0.2)), tmp_path / "b", noted(tmp_path / "c", (1, 0.5, 0.4))]
    if damage is not None:
        runs[1].mkdir()
        (runs[1] / "metrics.jsonl").write_text(damage, encoding="latin-1")
    line = over_steps("x", runs, "accuracy", "1")
    assert line is not None
    assert (list(line.x), list(line.epsilon)) == ([1], [0.5])
    assert line.y == pytest.approx([0.3])
    assert line.name == "x (2 of 3 seeds)"
    assert over_steps("x", runs[1:2], "accuracy", "1") is None


# folders


def test_a_folder_that_another_process_is_making(tmp_path: Path) -> None:
    """Processes that start together may find its empty parts before they find what says whose it is."""
    for part in ("members", "locks"):
        (tmp_path / "s" / part).mkdir(parents=True)
    assert SweepFolder(tmp_path / "s", "T", "now").root == tmp_path / "s"
    (tmp_path / "other" / "members" / "mine").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="not of a recipe"):
        SweepFolder(tmp_path / "other", "T", "now")
