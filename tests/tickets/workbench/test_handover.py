"""Runs that leave: the programs and networks of a folder, by themselves, against dpltm's own predictions."""

import csv
import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpltm
from dpltm.errors import DpltmError
from dpltm.records import encode
from dpltm.records.load import load, load_records
from dpltm.reports.wording import render
from dpltm.tickets.workbench.handover import export_run
from dpltm.verbs.evaluate import predict
from own_networks import FrozenNorm
from refusals import told

SCHEMA = """
missing = ["", "n/a"]
column."patient no." = { kind = "ignored" }
column."a b" = { kind = "number", bounds = [0, 110], missing = true }
column.a_b = { kind = "number", bounds = [20, 2000], log = true, missing = true, other = true }
column."größe (cm)" = { kind = "number", bounds = [-3.5, 3.5] }
column.day = { kind = "date", bounds = [2020-01-01, 2024-12-31], missing = true }
column.sex = { kind = "category", values = [["f", "female"], "m"], missing = true, other = true }
column."1code" = { kind = "category", values = ["x,1", 'y"2', "z"] }
column.note = { kind = "hashed", buckets = 5, missing = true }
column.outcome = { kind = "label", classes = ["no", "yes"] }
"""
NAMES = ("patient no.", "a b", "a_b", "größe (cm)", "day", "sex", "1code", "note")


def rows(count):
    """Rows of all kinds of cells: holes, words, spellings, blanks around, days and numbers outside."""
    draw = np.random.default_rng(7)

    def some(*values):
        return [str(draw.choice(values)) for _ in range(count)]

    return list(
        zip(
            [f"=p{place}" for place in range(count)],
            ["n/a" if draw.random() < 0.1 else f"{draw.normal(60, 40):.3f}" for _ in range(count)],
            [f"{draw.lognormal(5, 2):.1f}" if draw.random() < 0.9 else "unknown" for _ in range(count)],
            [f" {value!r}" for value in draw.normal(0, 3, count).tolist()],
            [f"20{draw.integers(18, 27)}-0{draw.integers(1, 10)}-1{draw.integers(0, 10)}" for _ in range(count)],
            some("f", "female", "m", "", "n/a", "else"),
            some("x,1", 'y"2', "z"),
            some("fall", "pain", "", "Größe", "fever"),
            strict=True,
        )
    )


def write(path, header, lines):
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *lines])
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Folder of a table, its schema, and a run of it."""
    folder = tmp_path_factory.mktemp("handover")
    (folder / "t.toml").write_text(SCHEMA, encoding="utf-8")
    labelled = [(*row, "yes" if place % 3 else "no") for place, row in enumerate(rows(300))]
    write(folder / "t.csv", (*NAMES, "outcome"), labelled)
    return folder


@pytest.fixture(scope="module")
def run(home):
    dataset = load(str(home / "t.csv"), schema=str(home / "t.toml"))
    options = {"epsilon": 9.0, "delta": 1e-4, "steps": 20, "batch_size": 50, "lr": 2.0}
    return dpltm.train("mlp:6", dataset, ledger=dpltm.Ledger(), **options)


@pytest.fixture(scope="module")
def folder(home, run):
    return export_run(run, home / "exported").path


@functools.cache
def trained(model, shape, **options):
    """A run on images, or on vectors of bytes."""
    x = np.random.default_rng(1).integers(0, 256, (60, *shape), dtype=np.uint8)
    given = {"epsilon": 50.0, "delta": 1e-4, "steps": 3, "batch_size": 30, "bounds": (0, 255), "classes": 3, **options}
    if "noise_multiplier" in given:
        del given["epsilon"]
    return dpltm.train(model, x, np.arange(60) % 3, ledger=dpltm.Ledger(), **given)


def programs(folder, *command):
    """Run a program of a folder by a Python that is told of no other folder; no module of dpltm may be imported."""
    watch = f"import runpy, sys; sys.argv = {list(map(str, command))!r}; sys.path.insert(0, {str(folder)!r})\n"
    watch += "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
    watch += "finally:\n assert not [name for name in sys.modules if name.partition('.')[0] == 'dpltm']"
    done = subprocess.run([sys.executable, "-E", "-c", watch], capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, done.stdout + done.stderr


def chances(path, first):
    return np.array(
        [[float(cell) for cell in row[first:]] for row in list(csv.reader(path.read_text().splitlines()))[1:]]
    )


def test_a_folder_predicts_by_itself(home, run, folder):
    """``predict.py`` of the folder, with an id, which becomes no formula, from a table in another order."""
    lines = rows(40)
    table = write(home / "new.csv", NAMES[::-1], [line[::-1] for line in lines])
    out = home / "out.csv"
    assert programs(folder, folder / "predict.py", table, out, "patient no.") == (0, "")
    expected = predict(run, load_records(str(write(home / "as-it-was.csv", NAMES, lines)), schema=run.schema))
    header, *found = csv.reader(out.read_text(encoding="utf-8").splitlines())
    assert header == ["patient no.", "label", "p no", "p yes"]
    assert [row[:2] for row in found] == [
        [f"'=p{place}", run.schema.class_names[y]] for place, y in enumerate(expected.labels)
    ]
    assert np.abs(chances(out, 2) - expected.probabilities).max() <= 1e-5


def test_what_a_folder_says_of_itself(run, folder):
    """The same in the file of the network as beside it; nothing of the machine."""
    about = json.loads((folder / "about.json").read_text())
    assert (about["form"], about["classes"], about["run"]) == ("onnx", ["no", "yes"], run.entry.id)
    assert about["certified"]["epsilon"] == pytest.approx(run.privacy.certified.epsilon)
    assert (about["certified"]["delta"], about["certified"]["unit"], len(about["weights"])) == (1e-4, "record", 64)
    assert json.loads(_properties(folder / "model.onnx")) == about
    whence = str(Path(__file__).parents[2]).encode()
    assert not [path.name for path in folder.iterdir() if path.is_file() and whence in path.read_bytes()]
    assert "certified epsilon = 8.99" in (folder / "README.md").read_text()


def test_names_of_classes_are_no_markup():
    """Nor that of a network: a page that shows the README follows no link and runs nothing that a table holds."""
    about = {"network": "own:a_b.py", "classes": ["[ill](x)", "<b>*well*"], "weights": "0"}
    text = render("export.md.jinja", {"about": about, "guarantee": ""})
    assert "# own:a\\_b.py, trained" in text
    assert "Classes: \\[ill\\](x), &lt;b&gt;\\*well\\*." in text


def _properties(path):
    import onnx

    return {one.key: one.value for one in onnx.load(path).metadata_props}["dpltm"]


ODD = {
    "a b": ["3", " 4 ", "", "n/a", "1e3", "-inf", "nan", "x", "1,5", "1_05"],
    "a_b": ["3", "", "nan", "x"],
    "größe (cm)": ["0.5", "", "none"],
    "day": ["2021-02-03", "2021-02-03T10:00", "", "03.02.2021", "2021-02-30", "2021-02-03abc"],
    "sex": ["f", "female", "F", "", "n/a"],
    "1code": ["z", "x,1", "Z", ""],
    "note": ["", "n/a", "any"],
}


@pytest.mark.parametrize(("name", "cell"), [(name, cell) for name, cells in ODD.items() for cell in cells])
def test_encode_takes_what_dpltm_takes(home, run, folder, name, cell):
    """Each odd cell is refused by both, naming line and column, or gives the same probabilities."""
    plain = dict(zip(NAMES, ("p", "1", "30", "0", "2022-01-01", "m", "z", "fall"), strict=True))
    table = write(home / "odd.csv", NAMES, [plain.values(), {**plain, name: cell}.values()])
    about = encode.described(folder)
    try:
        x = load_records(str(table), schema=run.schema)
    except DpltmError:
        with pytest.raises(
            ValueError, match=rf"odd.csv: line 3, column '{name}'".replace("(", r"\(").replace(")", r"\)")
        ):
            encode.inputs(table, about)
        return
    given = {key: np.array(values) for key, values in encode.inputs(table, about).items()}
    found = encode.network(folder)(given)
    np.testing.assert_allclose(found, predict(run, x).probabilities, atol=1e-6)


LOCAL = """
separator = ";"
encoding = "latin-1"
decimal = ","
skip = "#"
header = false
column.size = { kind = "number", bounds = [0, 9000] }
column.share = { kind = "number", bounds = [0, 100], missing = true }
column."stra\u00dfe" = { kind = "category", values = ["ja\u00df", "n;ein"] }
column.outcome = { kind = "label", classes = ["no", "yes"] }
"""


@pytest.mark.long
def test_a_table_of_other_marks(tmp_path):
    """Without a header, separated by semicolons, in Latin-1, with commas for points: by the programs as by dpltm."""
    (tmp_path / "t.toml").write_text(LOCAL, encoding="utf-8")
    lines = [f"{place}{place:03};{place},5 ;jaß;{'yes' if place % 2 else 'no'}" for place in range(1, 8)]
    lines += ["#;;;", '12,5 ;;"n;ein";no', "0,5;1e1;jaß;yes"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="latin-1")
    dataset = load(str(tmp_path / "t.csv"), schema=str(tmp_path / "t.toml"))
    options = {"epsilon": 50.0, "delta": 1e-2, "steps": 3, "batch_size": 5}
    run = dpltm.train("mlp", dataset, ledger=dpltm.Ledger(), **options)
    made = export_run(run, tmp_path / "e")
    assert programs(made.path, made.path / "predict.py", tmp_path / "t.csv", tmp_path / "out.csv") == (0, "")
    expected = predict(run, load_records(str(tmp_path / "t.csv"), schema=run.schema)).probabilities
    assert np.abs(chances(tmp_path / "out.csv", 1) - expected).max() <= 1e-5


@pytest.mark.parametrize(
    ("header", "line", "said"),
    [
        (NAMES[1:-1], ["1"] * 6, "lacks the columns note; it has a b, a_b"),
        (NAMES, ["1"] * 7, "line 2 has 7 cells in place of 8"),
    ],
)
def test_tables_that_do_not_fit(home, folder, header, line, said):
    table = write(home / "bad.csv", header, [line])
    code, told_ = programs(folder, folder / "predict.py", table, home / "bad.out.csv")
    assert (code, told_.startswith(f"predict.py: {table}: {said}"), told_.count("\n")) == (1, True, 1)
    assert not (home / "bad.out.csv").exists()


def test_what_the_schema_refuses_has_no_chances(folder):
    """Given to the network itself, past ``inputs``; the record beside it keeps its own."""
    good = {"a b": 1.0, "a_b": 30.0, "größe (cm)": 0.0, "day": 738000.0, "sex": "m", "1code": "z", "note": 1}
    network = encode.network(folder)
    for name, value in [("größe (cm)", np.nan), ("1code", "Z"), ("1code", ""), ("note", 5), ("note", -2)]:
        chances = network({key: np.array([good[key], {**good, name: value}[key]]) for key in good})
        assert np.isfinite(chances[0]).all(), name
        assert np.isnan(chances[1]).all(), name


OTHERS = [
    ("mlp:5", (8,), {"features": "unit:3"}),
    ("mlp", (8,), {"features": "fourier:64+unit", "centre": 0.1}),
    ("mlp-tanh:5", (8,), {"bounds": (-255, 255)}),
    ("mlp:project4,5", (4, 2), {"features": "fourier:32"}),
    ("cnn", (14, 14), {}),
    ("mlp", (14, 14), {"features": "conv"}),
    ("mlp", (16, 20, 3), {"features": "drawings:30"}),
    ("mlp", (14, 14, 3), {"features": "photographs:30"}),
    ("lstm", (6, 4), {}),
    ("gru", (6, 4), {}),
    (FrozenNorm, (8, 8, 3), {}),
]


@pytest.mark.long  # torch takes seconds for each
@pytest.mark.parametrize(("model", "shape", "options"), OTHERS)
def test_other_networks_and_features(tmp_path, model, shape, options):
    assert export_run(trained(model, shape, **options), tmp_path / "e").difference <= 1e-5


FOURIER = "features are computed by Fourier transforms, which ONNX"


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        ((14, 14), {"features": "scatter"}, f"the run: scatter {FOURIER}"),
        ((32, 3), {"features": "wavelets:3,1"}, f"the run: wavelets {FOURIER}"),
        ((4,), {"noise_multiplier": 0.0}, "the run: holds a network trained on records with no mechanism"),
    ],
)
def test_what_stays(tmp_path, shape, options, said):
    run = trained("mlp", shape, **options)
    assert told(export_run, run, tmp_path / "e", kind=DpltmError).startswith(said)
    assert list(tmp_path.iterdir()) == []


def test_masks_of_private_records_want_a_yes(tmp_path):
    x, y = np.random.default_rng(1).integers(0, 256, (60, 4), dtype=np.uint8), np.arange(60) % 3
    ledger, facts = dpltm.Ledger(), {"model": "mlp:6", "rounds": 1, "iterations": 2, "batch_size": 20}
    tickets = dpltm.generate(x, y, provenance="private", ledger=ledger, **facts)
    run = dpltm.train(tickets, x, y, round=1, epsilon=None, noise_multiplier=2.0, delta=1e-4, steps=2, ledger=ledger)
    why = "the run: depends on a release from records with no mechanism, such as the masks of its tickets"
    assert told(export_run, run, tmp_path / "e", kind=DpltmError).startswith(why)
    made = export_run(run, tmp_path / "e", yes=True)
    assert made.about["certified"]["epsilon"] == "inf"
    assert made.notes == ("no epsilon bounds what its masks may reveal",)


@pytest.mark.long
def test_another_answer_than_dpltms_is_not_placed(tmp_path, monkeypatch):
    run, whole = trained("mlp", (4,)), encode.network
    monkeypatch.setattr(encode, "network", lambda folder: lambda given: whole(folder)(given) + 2e-5)
    why = "the run: ONNX gives mlp other probabilities than dpltm, by 2e-05 on made-up records; nothing was written"
    assert told(export_run, run, tmp_path / "e", kind=DpltmError) == why
    monkeypatch.setattr(encode, "network", lambda folder: lambda given: whole(folder)(given) * np.nan)
    assert "by nan" in told(export_run, run, tmp_path / "e", kind=DpltmError)
    assert list(tmp_path.iterdir()) == []
