"""Bad input ends with exit code 2 (1 where a budget or a missing --yes refuses) and one line that names the culprit.

``refused`` compares the whole folder before and after: no ledger grew, nothing is half-written, no byte changed. What each
sentence says is tested where it is made.
"""

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
--criterion:                          | generate --dataset texts.npz {WORDS} --model gru --criterion synflow --out new
--mechanism:                          | {SELECT} --mechanism argmax
loop:                                 | select loop {PRI} --eps1 1
loop:                                 | privacy ledger loop
--dataset: digits[0.0:0.5] was        | {TRAIN} --adjacency replace-one
--epsilon:                            | {DENSE} --epsilon abc
--steps:                              | {DENSE} --steps 1e9
--out:                                | {DENSE} --out {"x" * 300}
--dataset: digits was declared public | train free@1 {PRI} --epsilon 1 --out new --ledger new.jsonl
--audit: 1,000,000 canaries: ask for  | {DENSE} --audit 1000000
--eval-private: 1e-09 is nothing but  | {DENSE} --eval-private 1e-9
--head:                               | train --dense --head least-squares {PRI} --epsilon 1 --out new
--head:                               | {HEAD} --model mlp:4
--head:                               | train pub@1 --head least-squares {PRI} --epsilon 1 --out new
--noise:                              | {HEAD} --noise nominal
--epsilon or --noise-multiplier:      | {HEAD.replace("--epsilon 1 ", "")}
--per-unit:                           | generate {PEOPLE} --provenance public --per-unit 3 --out new
--unit-column:                        | {PERSONS} --model lstm:3x1
--per-unit:                           | {PERSONS.replace("--unit-column who", "--per-unit 3")}
--label: digits is a name, not a      | train --dense --dataset digits --label ill --epsilon 1 --out new
--unit-column: all records of one     | {PERSONS} --dataset one.csv
--model:                              | {TEXTS} --model mlp:3
--features:                           | {TEXTS} --model embed --features unit
--schema: kind, bounds or values      | {MIXED} --schema draft.toml
--dataset: d[0.0:0.5] was declared    | {MIXED} --test 0.5 --adjacency replace-one --delta 1e-3 --ledger new.jsonl
--schema none.toml: no such file      | {FIND} --schema none.toml
--private: nothing in this schema     | {FIND} --schema s.toml
--private, --from-public:             | datasets schema d.csv --from-public --private 1
--records:                            | datasets schema d.csv --records 80
--label b: the schema says that       | {FIND} --label b
--test p.npz:                         | {FIND} --test p.npz
--unit-column ward:                   | {FIND} --unit-column ward
--out: s.toml exists                  | datasets schema d.csv --out s.toml
NAME|FILE is missing:                 | datasets info
--out: s exists                       | {SCHEME} --out s
--label-epsilon is missing: what      | {SCHEME.replace("--label-epsilon 1 ", "")}
s:                                    | {ENCODE} --ledger s
--ledger: the messages go there       | {ENCODE} --ledger new
--out: file exists                    | {ENCODE} --out file
--dataset: (4,) of d is not           | {ENCODE} --dataset d.csv --schema s.toml
o.npz/m: cannot be written            | {ENCODE} --out o.npz/m
--subset: a fraction picks owners     | {ENCODE} --subset 0.0:0.5
--messages: two files hold the same   | {LEARN} --messages s.msg,f/../s.msg
--test none.npz: no such file         | {LEARN} --test none.npz
--public none.npz: no such file       | {SCHEME} --public none.npz
--unit: '' is not a text; give one    | privacy budget new.jsonl --epsilon 1 --unit=
--out: s.toml exists                  | {TUNE} --out s.toml
numbers.csv: its first line           | predict r --input numbers.csv -o p.csv
--label y:                            | predict r --input x.npz --label y -o p.csv
--out: old.csv exists                 | predict r --input x.npz -o old.csv
--out: p.csv.gz is no .csv; name it    | predict r --input x.npz -o p.csv.gz
--out: new: tensors are written as    | tickets export pub@1 --out new
--out: pri exists                     | tickets export pub --out pri
[1] pri: made from private records    | tickets export pri --out new
[1] pri: made from private records    | tickets export pri@1 --out new
nothing to compact:                   | tickets compact pub@0 --out new
--out: pub exists                     | tickets import t.safetensors --model mlp:8 {PUB} --out pub
--provenance: t.safetensors says      | tickets import t.safetensors --model mlp:8 {PUB} --provenance private --out new
--sampling-rate:                      | privacy epsilon {PRIVACY} --sampling-rate 1.5
--sampling-rate is missing: the chance | privacy epsilon --noise-multiplier 1 --steps 9
--adjacency:                          | privacy epsilon {PRIVACY} --adjacency both
--steps: the --ledger holds           | privacy curve --ledger l.jsonl --steps 3
--out: r exists                       | report r -o r
x.txt: not a picture                  | compare r pub --plot x.txt
l: made under local privacy           | report l
RUN: name at least two different runs | compare r r
--words 9: give 1 to 10,000,000, and records as (records, positions); digits: x_train has | {DENSE} --words 9
nets.py:Net: no ticket set there; name a folder that holds one (code goes with --model) | select nets.py:Net {PRI} --eps1 1
NAME 'mnist-9': no dataset known      | datasets fetch mnist-9
pub: no run there                     | compare r pub
pub: no run there                     | privacy check pub
r/model.safetensors: not a text       | privacy check r/model.safetensors
--model: nets.py: no such file        | export r --model nets.py:Net --out m
--metric: auc compares every record   | {MIXED} --eval-private 0.5 --metric auc
--metric: auc compares every record   | {SELECT} --metric auc
--noise-multiplier is missing:        | privacy epsilon --mechanism laplace
--eps1 is missing: the epsilon of one | privacy epsilon --mechanism randomized-response
--sampling-rate: does not go with     | privacy epsilon --mechanism laplace --noise-multiplier 1 --sampling-rate 0.1
--eps1: does not go with              | privacy epsilon --mechanism gaussian --noise-multiplier 1 --eps1 1
--noise-multiplier: does not go with  | privacy epsilon --mechanism randomized-response --eps1 1 --noise-multiplier 1
--sampling: does not go with          | privacy epsilon --mechanism laplace --noise-multiplier 1 --sampling allocation:2
--group: goes with --mechanism        | privacy epsilon {PRIVACY} --group 2
--steps or --epochs: give one of them | {ALLOCATED}
--sampling-rate: follows from         | {ALLOCATED} --sampling-rate 0.1 --steps 9
--sampling: allocation:3 is not from  | {ALLOCATED} --steps 2
none.jsonl: no such ledger file       | privacy ledger none.jsonl
/proc/none/l.jsonl: cannot be written  | {SELECT} --ledger /proc/none/l.jsonl
/proc/none/l.jsonl: cannot be written  | {TRAIN} --out deep/new --ledger /proc/none/l.jsonl
"""


ROW = re.compile(r"(?:\[1\] )?(.*?) +\| (.*)")


def schemas(folder: Path) -> None:
    """Of ``d.csv``: ``s.toml``, and ``draft.toml``, which leaves things private."""
    number = '[column.{}]\nkind = "number"\nbounds = [-9, 99]\n'
    ward, who = '[column.ward]\nkind = "category"\nvalues = ["0", "1"]\n', '[column.who]\nkind = "ignored"\n'
    label = '[column.ill]\nkind = "label"\nclasses = ["0", "1"]\n'
    text = number.format("age") + number.format("b") + ward + who + label
    (folder / "s.toml").write_text(text)
    (folder / "draft.toml").write_text(text.replace("[-9, 99]", '"private"').replace('["0", "1"]', '"private"', 1))


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
    offsets = np.cumsum([0, *draw.integers(3, 20, 150)])
    values = draw.integers(0, 30, offsets[-1]).astype(np.uint32)
    np.savez(folder / "texts.npz", values_train=values, offsets_train=offsets, y_train=np.arange(150) % 2)
    table = [f"{draw.normal():.3f},p{n % 40},{draw.normal():.3f},{n % 2},{n % 3 % 2}" for n in range(80)]
    for name, rows in (("d", table), ("one", [re.sub(r",p\d+,", ",ann,", row) for row in table])):
        (folder / f"{name}.csv").write_text("\n".join(["age,who,b,ward,ill", *rows]) + "\n")
    (folder / "numbers.csv").write_text("1,1\n1,1\n")
    (folder / "f").mkdir()
    for name in ("file", "old.csv"):
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
    return made_by(
        folder,
        "tickets export pub@2 --out t.safetensors",
        FREE,
        f"{DENSE.replace('--out new', '--out r')} --ledger l.jsonl",
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
