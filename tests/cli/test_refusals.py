"""Bad input ends with exit code 2 (1 where a budget or a missing --yes refuses) and one line that names the culprit.

``refused`` compares the whole folder before and after: no ledger grew, nothing is half-written, no byte changed. What each
sentence says is tested where it is made.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from commands import PRIVATE as PRI
from commands import PUBLIC as PUB
from commands import TINY, made_by

MAKE = f"generate {PUB} {TINY} --provenance public --out new"
SELECT, TRAIN = f"select pub {PRI} --eps1 0.1", f"train pub@1 {PRI} --steps 3 --epsilon 1 --out new"
DENSE = f"train --dense {PRI} --model mlp:8 --steps 3 --epsilon 1 --out new"
FREE = f"generate --dataset digits --provenance public {TINY} --ledger all.jsonl --out free"
HEAD = f"train --dense --head least-squares {PRI} --features unit --epsilon 1 --delta 1e-4 --out new"
PEOPLE = "--dataset d.csv --label ill --bounds -2,2 --classes 2 --unit-column who"
PERSONS = f"train --dense {PEOPLE} --model mlp:4 --steps 4 --noise-multiplier 2 --batch-size 10 --delta 1e-3"
PERSONS += " --ledger l2 --out new"
WORDS = "--words 30 --classes 2"
OF_TEXTS = f"generate --dataset texts.npz {WORDS} --rounds 1"
TEXTS = f"train --dense --dataset texts.npz {WORDS} --noise-multiplier 1 --delta 1e-3 --steps 2 --out new"
MIXED = "train --dense --dataset d.csv --schema s.toml --epsilon 1 --model mlp:4 --steps 3 --out new"
FIND = "datasets schema d.csv --schema draft.toml --records 80 --private 1 --out new.toml"
SCHEME = "latent scheme --public p.npz --features unit --protocol rappor --epsilon 9 --label-epsilon 1 --out new"
ENCODE, LEARN = "latent encode s --dataset o.npz --out new", "latent train s --messages s.msg --model mlp:8 --out new"
TUNE = f"tune {PUB} --for-records 700 --epsilon 2 --epochs 1 --batch-size 100 --lr 1"
PRIVACY = "--noise-multiplier 1.1 --sampling-rate 0.01 --steps 100"
ALLOCATED = "privacy epsilon --noise-multiplier 1 --sampling allocation:3"

ROWS = f"""
bad.npz: x_train has nan              | {MAKE} --dataset bad.npz --bounds 0,255
--dataset no.npz:                     | {TRAIN} --dataset no.npz
{"x" * 80}: File name too long | {DENSE} --dataset {"x" * 300}.npz
--bounds:                             | {MAKE} --bounds 5
--rounds:                             | {MAKE} --rounds 10000
--out:                                | {MAKE} --out pub
--out:                                | {MAKE} --out pub/tickets.json/new
--out:                                | {MAKE} --out pub --dry-run
--out: taken.private.json             | {MAKE} --provenance private --ledger new.jsonl --out taken
--name:                               | {MAKE} --name {"a" * 201}
--criterion:                          | {OF_TEXTS} --model gru --criterion synflow --out new
--mechanism:                          | {SELECT} --mechanism argmax
--eps1:                               | {SELECT} --eps1 nan
bundled:kmnist-mlp:                   | select bundled:kmnist-mlp {PRI} --eps1 0.1
folder:                               | select folder {PRI} --eps1 0.1
loop:                                 | select loop {PRI} --eps1 1
loop:                                 | privacy ledger loop
--dataset: digits[0.0:0.5] was        | {TRAIN} --adjacency replace-one
--epsilon:                            | {DENSE} --epsilon abc
--steps:                              | {DENSE} --steps 1e9
--seed:                               | {DENSE} --seed 99999999999999999999
--out:                                | {DENSE} --out {"x" * 300}
--delta:                              | {TRAIN} --delta {1 / 719!r}
--dataset: digits was declared public | train free@1 {PRI} --epsilon 1 --out new --ledger new.jsonl
--audit: 5 canaries                   | {DENSE} --audit 5
--head:                               | train --dense --head least-squares {PRI} --epsilon 1 --out new
--head:                               | {HEAD} --model mlp:4
--head:                               | train pub@1 --head least-squares {PRI} --epsilon 1 --out new
--noise:                              | {HEAD} --noise nominal
--epsilon or --noise-multiplier:      | {HEAD.replace("--epsilon 1 ", "")}
--unit-column nobody:                 | {PERSONS} --unit-column nobody
--per-unit:                           | generate {PEOPLE} --provenance public --per-unit 3 --out new
--model: cnn:14x14x1:                 | {PERSONS} --model cnn:14x14x1
--unit-column:                        | {PERSONS} --model lstm:3x1
--per-unit:                           | {PERSONS.replace("--unit-column who", "--per-unit 3")}
d.csv: 40 of the 40 values            | {PERSONS} --test d.csv
d.csv: needs --label                  | train --dense --dataset d.csv --bounds -2,2 --epsilon 1 --out new
--label ill:                          | train --dense --dataset digits --label ill --epsilon 1 --out new
holes.csv: 'who' says nobody          | {PERSONS} --dataset holes.csv
--unit-column: all records of one     | {PERSONS} --dataset one.csv
--model:                              | {TEXTS} --model mlp:3
--model embed:                        | {DENSE} --model embed
--features:                           | {TEXTS} --model embed --features unit
embed: its network takes              | train embed@1 {PRI} --epsilon 1 --out new
words.npz: holds texts                | predict r --input words.npz -o p.csv
--schema empty.toml: column 'age'     | {MIXED} --schema empty.toml
--schema: kind, bounds or values      | {MIXED} --schema draft.toml
--label:                              | {MIXED} --label ill
--schema:                             | {MIXED} --dataset digits
d.csv: lacks the columns 'where'      | {MIXED} --schema other.toml
d.csv: does not fit its schema        | {MIXED} --schema narrow.toml
--schema none.toml: no such file      | {FIND} --schema none.toml
--private: nothing in this schema     | {FIND} --schema s.toml
d.csv: does not fit its schema        | {FIND} --schema narrow-draft.toml
--private, --from-public:             | datasets schema d.csv --from-public --private 1
--no-header: draft.toml says it       | {FIND} --no-header
--records:                            | datasets schema d.csv --records 80
--label b: the schema says that       | {FIND} --label b
--test p.npz:                         | {FIND} --test p.npz
--unit-column ward:                   | {FIND} --unit-column ward
--out: s.toml exists                  | datasets schema d.csv --out s.toml
NAME|FILE is missing:                 | datasets info
f: x_train is damaged                 | datasets info ./f
--protocol:                           | {SCHEME} --protocol x
--out: s exists                       | {SCHEME} --out s
s:                                    | {ENCODE} --ledger s
--ledger: the messages go there       | {ENCODE} --ledger new
--out: file exists                    | {ENCODE} --out file
o.npz/m: cannot be written            | {ENCODE} --out o.npz/m
--subset: a fraction picks owners     | {ENCODE} --subset 0.0:0.5
--subset 0:100:                       | {ENCODE} --subset 0:100
--dataset none.npz:                   | {LEARN} --test none.npz
--messages: a file is named twice     | {LEARN} --messages s.msg,f/../s.msg
--for-records is missing:             | tune {PUB} --epsilon 1
--model:                              | {TUNE} pub --model mlp
--out: s.toml exists                  | {TUNE} --out s.toml
--input: bad-shape.npz                | predict r --input bad-shape.npz -o p.csv
numbers.csv: its first line           | predict r --input numbers.csv -o p.csv
--label y:                            | predict r --input x.npz --label y -o p.csv
--input digits:                       | predict r --input digits -o p.csv
--out: old.csv exists                 | predict r --input x.npz -o old.csv
pub: not a run                        | predict pub --input x.npz -o p.csv
SET@ROUND:                            | tickets export pub@1 --out new
SET@ROUND:                            | tickets export pub --to torch-prune --out new.x
--predictor:                          | tickets export pub --predictor --out new
--no-predictors:                      | tickets export pub@1 --to torch-prune --no-predictors --out new
--predictor: slim has none            | tickets export slim@1 --to state-dict --predictor --out new
--out: pri exists                     | tickets export pub --out pri
[1] pri: made from private records    | tickets export pri --no-predictors --out new
[1] pri: made from private records    | tickets export pri@1 --to torch-prune --out new
[1] --predictor: the predictors       | tickets export pri@1 --to state-dict --predictor --yes --out new
nothing to compact:                   | tickets compact pub@0 --out new
--mode: 'mlp:8' has no projection     | tickets transfer pub {PRI} --mode drop-projection --out new
nothing to compact:                   | tickets compact gru@1 --out new
--out: pub exists                     | tickets import t.safetensors --model mlp:8 {PUB} --out pub
--provenance: t.safetensors says      | tickets import t.safetensors --model mlp:8 {PUB} --provenance private --out new
--noise-multiplier:                   | privacy epsilon {PRIVACY} --noise-multiplier nan
--sampling-rate:                      | privacy epsilon {PRIVACY} --sampling-rate 1.5
--adjacency:                          | privacy epsilon {PRIVACY} --adjacency both
--noise-multiplier, --sampling-rate,  | privacy noise {PRIVACY} --epsilon 1
--accountant: clt                     | privacy noise --epsilon 1 --sampling-rate 0.1 --steps 3 --accountant clt
--steps: the --ledger holds           | privacy curve --ledger l.jsonl --steps 3
nothing: no run                       | report nothing
--out: r exists                       | report r -o r
--out, --plot: name two different     | report r -o x.png --plot x.png
x.txt: not a picture                  | report r --plot x.txt
l: made under local privacy           | report l
RUN: name at least two runs           | compare r
RUN: r is named twice                 | compare r r
pub: no run there                     | compare r pub
--csv, --md, --plot: name different   | compare r part.run --csv x.csv --md x.csv
RUN: nothing can be compared: part  | compare r part.run
pub: no run there                     | privacy check pub
pub/README.md: holds no statement     | privacy check pub/README.md
r/model.safetensors: not a text       | privacy check r/model.safetensors
--out: a folder is written            | export r --out m.onnx
--model: nets.py: no such file        | export r --model nets.py:Net --out m
--metric: auc compares every record   | {MIXED} --eval-private 0.5 --metric auc
--metric: auc compares every record   | {SELECT} --metric auc
--metric: balanced-accuracy needs     | {MIXED} --eval-private 0.5 --metric balanced-accuracy
--class-weight: balanced needs public | {MIXED} --class-weight balanced
--class-weight: 3 numbers for 2       | {MIXED} --class-weight 1,2,3
--class-weight: a group of --micro    | {MIXED} --class-weight 1,2 --microbatch 2
--noise-multiplier is missing:        | privacy epsilon --mechanism laplace
--eps1 is missing: the epsilon of one | privacy epsilon --mechanism randomized-response
--sampling-rate: does not go with     | privacy epsilon --mechanism laplace --noise-multiplier 1 --sampling-rate 0.1
--eps1: does not go with              | privacy epsilon --mechanism gaussian --noise-multiplier 1 --eps1 1
--noise-multiplier: does not go with  | privacy epsilon --mechanism randomized-response --eps1 1 --noise-multiplier 1
--sampling: does not go with          | privacy epsilon --mechanism laplace --noise-multiplier 1 --sampling allocation:2
--categories: 1 is not a whole number | privacy epsilon --mechanism randomized-response --eps1 1 --categories 1
--noise-multiplier: 0 is not a        | privacy epsilon --mechanism laplace --noise-multiplier 0
--group: 0 is not a positive whole    | privacy epsilon --mechanism laplace --noise-multiplier 1 --group 0
--group: goes with --mechanism        | privacy epsilon {PRIVACY} --group 2
--steps or --epochs: give one of them | {ALLOCATED}
--steps or --epochs: give one of them | privacy noise --epsilon 2 --sampling allocation:15 --noise-multiplier 1
--sampling-rate: follows from         | {ALLOCATED} --sampling-rate 0.1 --steps 9
--sampling: allocation:3 is not from  | {ALLOCATED} --steps 2
none.jsonl: no such ledger file       | privacy ledger none.jsonl
/proc/none/l.jsonl: the ledger cannot | {SELECT} --ledger /proc/none/l.jsonl
/proc/none/l.jsonl: the ledger cannot | {TRAIN} --out deep/new --ledger /proc/none/l.jsonl
"""


ROW = re.compile(r"(?:\[1\] )?(.*?) +\| (.*)")


def schemas(folder: Path) -> None:
    """Schemas of ``d.csv``, each with something wrong but for ``s.toml`` and ``draft.toml``."""
    number = '[column.{}]\nkind = "number"\nbounds = [-9, 99]\n'
    ward, who = '[column.ward]\nkind = "category"\nvalues = ["0", "1"]\n', '[column.who]\nkind = "ignored"\n'
    text = (
        number.format("age") + number.format("b") + ward + who + '[column.ill]\nkind = "label"\nclasses = ["0", "1"]\n'
    )
    draft = text.replace("[-9, 99]", '"private"').replace('["0", "1"]', '"private"', 1)
    for name, content in {
        "s": text,
        "draft": draft,
        "empty": text.replace('kind = "number"', 'kind = ""', 1),
        "other": text.replace("column.who", "column.where"),
        "narrow": text.replace('"1"', '"2"', 1),
        "narrow-draft": draft.replace('"1"', '"maybe"'),
    }.items():
        (folder / f"{name}.toml").write_text(content)


def files(folder: Path) -> None:
    """Records of every kind; some are good for nothing."""
    digits, draw = load_digits(), np.random.default_rng(0)
    x, y = digits.images.astype(np.uint8), digits.target
    for name, part in (("p", slice(0, 300)), ("o", slice(300, 600))):
        np.savez(folder / f"{name}.npz", x_train=x[part] * 15, y_train=y[part])
    bad = np.zeros((40, 64), np.float32)
    bad[7, 3] = np.nan
    np.savez(folder / "bad.npz", x_train=bad, y_train=np.arange(40) % 10)
    np.savez(folder / "x.npz", x=x[:5])
    np.savez(folder / "bad-shape.npz", x=x[:5, :7])
    offsets = np.cumsum([0, *draw.integers(3, 20, 150)])
    values = draw.integers(0, 30, offsets[-1]).astype(np.uint32)
    np.savez(folder / "texts.npz", values_train=values, offsets_train=offsets, y_train=np.arange(150) % 2)
    np.savez(folder / "words.npz", values=values, offsets=offsets)
    table = [f"{draw.normal():.3f},p{n % 40},{draw.normal():.3f},{n % 2},{n % 3 % 2}" for n in range(80)]
    for name, rows in {
        "d": table,
        "holes": [table[0].replace("p0", " "), *table[1:]],
        "one": [re.sub(r",p\d+,", ",ann,", row) for row in table],
    }.items():
        (folder / f"{name}.csv").write_text("\n".join(["age,who,b,ward,ill", *rows]) + "\n")
    (folder / "numbers.csv").write_text("1,1\n1,1\n")
    for name in ("folder", "f"):
        (folder / name).mkdir()
    for name in ("x_train", "y_train"):  # an archive of arrays, where one array belongs
        shutil.copy(folder / "x.npz", folder / "f" / f"{name}.npy")
    for name in ("file", "old.csv", "there.png", "taken.private.json"):
        (folder / name).write_text("mine")
    (folder / "loop").symlink_to("loop")
    (folder / "l").mkdir()
    (folder / "l/config.json").write_text('{"format": "dpltm-run", "schema": 2, "scheme": "x"}')


@pytest.fixture(scope="module")
def place(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that no row changes."""
    folder = tmp_path_factory.mktemp("refusals") / "work"
    shutil.copytree(made, folder)
    files(folder)
    schemas(folder)
    texts = f"{OF_TEXTS} --iterations 3 --batch-size 30 --provenance public"
    return made_by(
        folder,
        "tickets export pub --no-predictors --out slim",
        "tickets export pub@2 --to torch-prune --out t.safetensors",
        *(f"{texts} --model {name} --ledger texts.jsonl --out {name}" for name in ("embed", "gru")),
        FREE,
        f"{DENSE.replace('--out new', '--out r')} --ledger l.jsonl",
        f"{DENSE.replace('0.5:1.0', '0.2:0.4').replace('--out new', '--out part.run')} --ledger o.jsonl",
        SCHEME.replace("--out new", "--out s"),
        ENCODE.replace("--out new", "--out s.msg"),
    )


@pytest.fixture
def cwd(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place.parent / "config-home"))
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize("row", ROWS.strip().splitlines())
def test_a_line_that_names_the_culprit_and_nothing_changed(refused, row):
    found = ROW.fullmatch(row)
    assert refused(found[2], code=1 if row.startswith("[1]") else 2).startswith(found[1])
