"""Bad input ends with exit code 2 and one line that names the culprit and the fix, and leaves every byte as it was.

``refused`` compares the whole working folder before and after: no ledger grew, nothing is half-written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TINY = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3", "--iterations", "5", "--batch-size", "32")
GENERATE = ("generate", *TINY, "--provenance", "public", "--out", "new")
SELECT = ("select", "pub", "--eps1", "0.1")
TRAIN = ("train", "pub@1", "--steps", "3", "--epsilon", "1", "--out", "new")
DENSE = ("train", "--dense", "--steps", "3", "--epsilon", "1", "--out", "new")
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (40, 64), dtype=np.uint8)
Y = np.arange(40) % 10


def with_value(value, record=7, feature=3):
    x = X.astype(np.float32)
    x[record, feature] = value
    return x


# --- the data ---

UNKNOWN = (
    "--dataset mnits: no such dataset; did you mean mnist? known: digits, mnist, kmnist, kmnist-7k, fashion-mnist, cifar10,"
    " cifar10-12k, har, har-signals, isolet, a9a, imdb, movielens, movielens-like, movielens-small, adult; or put"
    " mnits.npz into home, or give a path that ends in .npz, .csv or .parquet"
)
GAP = Y.copy()
GAP[GAP == 4] = 5
FILES = {
    "nan": (
        {"x_train": with_value(np.nan), "y_train": Y},
        "bad.npz: x_train has nan at record 7, feature 3 (counted from 0); features must be finite; replace the value or"
        " drop the record",
    ),
    "infinity": (
        {"x_train": with_value(-np.inf, 0, 63), "y_train": Y},
        "bad.npz: x_train has -inf at record 0, feature 63 (counted from 0); features must be finite; replace the value or"
        " drop the record",
    ),
    "nan in the test split": (
        {"x_train": with_value(1), "y_train": Y, "x_test": with_value(np.nan), "y_test": Y},
        "bad.npz: x_test has nan at record 7, feature 3 (counted from 0); features must be finite; replace the value or drop"
        " the record",
    ),
    "labels from 1": (
        {"x_train": X, "y_train": Y + 1},
        "bad.npz: y_train goes up to 10, but no record has label 0; number the classes without gaps or pass --classes 11",
    ),
    "a gap in the labels": (
        {"x_train": X, "y_train": GAP},
        "bad.npz: y_train goes up to 9, but no record has label 4; number the classes without gaps or pass --classes 10",
    ),
    "negative label": (
        {"x_train": X, "y_train": np.where(Y == 3, -1, Y)},
        "bad.npz: y_train has label -1 at record 3; labels must be integers 0 to K-1; number the classes from 0",
    ),
    "half a label": (
        {"x_train": X, "y_train": Y + 0.5},
        "bad.npz: y_train has label 0.5 at record 0; labels must be integers 0 to K-1; number the classes from 0",
    ),
    "one class only": (
        {"x_train": X, "y_train": Y * 0},
        "bad has label 0 in all of its 40 records; give a file with two classes or more",
    ),
    "unlabelled records": (
        {"x_train": X, "y_train": Y[:30]},
        "bad.npz: x_train has 40 records but y_train has 30 labels; give one label a record",
    ),
    "no labels": (
        {"x_train": X},
        "bad.npz: has no array y_train, only 'x_train'; save it under that name",
    ),
    "no records": (
        {"x_train": X[:0], "y_train": Y[:0]},
        "bad.npz: x_train has shape (0, 64) and holds no data; give a file with records and features",
    ),
    "text": (
        {"x_train": X.astype(str), "y_train": Y},
        "bad.npz: x_train has dtype <U3; expected bool, integers or floats of 64 bits or fewer; convert it",
    ),
}
COMMANDS = {"generate": GENERATE, "select": SELECT, "train": TRAIN, "dense": DENSE}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", FILES)
def test_bad_records(cwd, refused, command, case):
    arrays, message = FILES[case]
    np.savez(cwd / "bad.npz", **arrays)
    assert refused(*COMMANDS[command], "--dataset", "bad.npz", "--bounds", "0,255") == message


@pytest.mark.parametrize("command", COMMANDS)
def test_fewer_records_than_classes(cwd, refused, command):
    np.savez(cwd / "few.npz", x_train=X[:6], y_train=Y[:6])
    assert refused(*COMMANDS[command], "--dataset", "few.npz", "--classes", "10") == (
        "few has 6 records for 10 classes; give as many records as classes or more"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_subset_with_fewer_records_than_classes(refused, command):
    assert refused(*COMMANDS[command], "--dataset", "digits", "--subset", "0:5") == (
        "--subset 0:5: digits has 5 records for 10 classes; give as many records as classes or more"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_dataset(refused, command, monkeypatch):
    monkeypatch.setenv("DPLTM_DATA", "home")
    assert refused(*COMMANDS[command], "--dataset", "mnits") == UNKNOWN


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_file(refused, command):
    assert refused(*COMMANDS[command], "--dataset", "no/such.npz") == (
        "--dataset no/such.npz: no such file; correct the path"
    )


@pytest.mark.parametrize("command", [SELECT, TRAIN, DENSE])
def test_no_dataset(refused, command):
    assert refused(*command) == (
        "--dataset is missing: name the records to use (dpltm datasets ls lists what is at hand)"
    )


def test_missing_test_file(cwd, refused):
    np.savez(cwd / "ok.npz", x_train=X, y_train=Y)
    assert refused(*GENERATE, "--dataset", "ok.npz", "--test", "no.npz") == (
        "--test no.npz: no such file; correct the path"
    )


def test_not_an_archive(cwd, refused):
    (cwd / "bad.npz").write_text("hello")
    assert refused(*GENERATE, "--dataset", "bad.npz") == (
        "bad.npz: is not a NumPy archive that can be read; save it with numpy.savez"
    )


def test_no_public_bounds(cwd, refused):
    np.savez(cwd / "bad.npz", x_train=X.astype(np.float32), y_train=Y)
    assert refused(*GENERATE, "--dataset", "bad.npz") == (
        "bad.npz: x_train is float32, which has no public range; pass --bounds LO,HI, since scaling by the data's own"
        " minimum and maximum would leak them"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bounds", "5"), "--bounds: '5' is not of the form LO,HI, such as 0,255"),
        (("--bounds", "1,2,3"), "--bounds: '1,2,3' is not of the form LO,HI, such as 0,255"),
        (("--bounds", "a,b"), "--bounds: 'a,b' is not a list of numbers separated by commas"),
        (("--bounds", "2,1"), "--bounds 2,1: LO must be less than HI; swap or correct them"),
        (
            ("--bounds", "0,nan"),
            "--bounds 0,nan: both ends must be finite; pass the public range of the features, LO,HI",
        ),
        (
            ("--classes", "5"),
            "digits: y_train has label 5 at record 4, but there are 5 classes, numbered from 0; correct the label or pass"
            " --classes",
        ),
        (("--records", "0"), "--records 0: must be 1 or more; pass the public number of training records"),
        (
            ("--subset", "0:99999"),
            "--subset 0:99999: means records 0 to 99999, but digits has records 0 to 1438; give a range inside that is not"
            " empty",
        ),
        (
            ("--subset", "half"),
            "--subset 'half': expected FRACTION in (0, 1] such as 0.1, START:STOP in fractions such as 0.5:1.0,"
            " or in places of a named dataset such as 0:5000",
        ),
        (("--label", "y"), "--label y: digits is a name, not a .csv or .parquet file; drop --label"),
    ],
)
def test_bad_data_options(refused, options, message):
    assert refused(*GENERATE, "--dataset", "digits", *options) == message
    assert refused(*DENSE, "--dataset", "digits", *options) == message


# --- generate ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--prune", "0"),
            "--prune: 0 is not between 0 and 1; a rate is the fraction of live weights dropped",
        ),
        (
            ("--prune", "0.3,1"),
            "--prune: 1 is not between 0 and 1; a rate is the fraction of live weights dropped",
        ),
        (
            ("--prune", "1.5"),
            "--prune: 1.5 is not between 0 and 1; a rate is the fraction of live weights dropped",
        ),
        (
            ("--prune", "-0.1"),
            "--prune: -0.1 is not between 0 and 1; a rate is the fraction of live weights dropped",
        ),
        (
            ("--prune", "nan"),
            "--prune: nan is not between 0 and 1; a rate is the fraction of live weights dropped",
        ),
        (("--prune", "0.3,,0.2"), "--prune: '0.3,,0.2' is not a list of numbers separated by commas"),
        (("--prune", ""), "--prune: '' is not a list of numbers separated by commas"),
        (("--prune", "0.3,0.3,0.2"), "--prune: 3 rates for a network of 2 layers; give at most 2"),
        (("--prune", "0.0001"), "--prune: the rates are too small: round 1 would drop no weight of any layer"),
        (
            ("--prune", "0.9", "--rounds", "5"),
            "--rounds: round 3 of 5 would empty layer 2 (of 80 weights); ask for at most 2 rounds or prune less",
        ),
        (("--rounds", "0"), "--rounds: 0 is not a positive whole number"),
        (("--rounds", "10000"), "--rounds: 10000 is more than the 9999 that a ticket set may have"),
        (("--iterations", "-1"), "--iterations: -1 is not a positive whole number"),
        (("--batch-size", "0"), "--batch-size: 0 is not a positive whole number"),
        (("--batch-size", "1439"), "--batch-size: 1439 is more than the 1438 records of digits"),
        (("--lr", "0"), "--lr: 0.0 is not a positive number"),
        (("--lr", "nan"), "--lr: nan is not a positive number"),
        (("--seed", "-1"), "--seed: -1 is not between 0 and 2^63 - 1"),
        (("--seed", "9223372036854775808"), "--seed: 9223372036854775808 is not between 0 and 2^63 - 1"),
        (
            ("--model", "vgg"),
            "--model: unknown network 'vgg'; known: mlp:WIDTH,WIDTH,... (such as mlp:300,100), mlp-tanh:..., cnn, latent,"
            " embed, embed-pad, lstm, gru, ncf",
        ),
        (
            ("--model", "mlp:8,0"),
            "--model: 'mlp:8,0': widths must be whole numbers from 1 to 100000, as in mlp:300,100",
        ),
        (
            ("--model", "mlp:8;9"),
            "--model: 'mlp:8;9': widths must be whole numbers from 1 to 100000, as in mlp:300,100",
        ),
        (
            ("--criterion", "best"),
            "--criterion: 'best' is not one of magnitude, inputs, random, init-magnitude, synflow, structured, dp-train,"
            " dp-synthetic",
        ),
        (("--provenance", "secret"), "--provenance: 'secret' is not one of public, private, data-free, dp"),
        (("--out", "pub"), "--out: pub exists already; choose another name or remove it first"),
        (
            ("--out", "pub/tickets.json"),
            "--out: pub/tickets.json exists already; choose another name or remove it first",
        ),
    ],
)
def test_generate(refused, options, message):
    assert refused(*GENERATE, "--dataset", "digits", *options) == message


def test_generate_needs_the_provenance(refused):
    assert refused("generate", *PUBLIC, *TINY) == (
        "--provenance is missing: say public if these records are public, or private if they are not (then nothing can be"
        " certified for them)"
    )


def test_generate_where_nothing_can_be_written(refused):
    message = refused(*GENERATE, "--dataset", "digits", "--out", "pub/tickets.json/new")
    reasons = ("File exists", "Not a directory")  # whichever the system meets first
    assert message in [
        f"pub/tickets.json/new: cannot be written: {reason}; choose another place" for reason in reasons
    ]


# --- epsilon and delta ---


@pytest.mark.parametrize("delta", ["0", "-1", "1", "nan", repr(1 / 719), "0.5"])
@pytest.mark.parametrize("command", COMMANDS)
def test_delta(refused, command, delta):
    private = ("--provenance", "private") if command == "generate" else ()
    assert refused(*COMMANDS[command], *PRIVATE, *private, "--delta", delta) == (
        f"--delta: {float(delta):g} is not between 0 and 1/n = 0.00139 for 719 records; take one well below it"
    )


@pytest.mark.parametrize("eps1", ["0", "-0.1", "nan", "inf"])
def test_eps1(refused, eps1):
    assert refused("select", "pub", *PRIVATE, "--eps1", eps1) == (
        f"--eps1: {float(eps1)} is not a positive number; 0.1 is DPLTM's"
    )


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e300"])
def test_epsilon(refused, value):
    message = f"--epsilon: {float(value):g} is not a positive number up to 10000"
    assert refused(*TRAIN, *PRIVATE, "--epsilon", value) == message
    assert refused("demo", "--epsilon", value, "--out", "new") == message


@pytest.mark.parametrize("value", ["1e-6", "1e-300"])
@pytest.mark.parametrize("command", [TRAIN, DENSE])
def test_epsilon_too_small_to_calibrate(refused, command, value):
    assert refused(*command, *PRIVATE, "--epsilon", value) == (
        f"--epsilon: {float(value):g} is too small to calibrate: even noise multiplier 16384 over 3 steps at sampling rate"
        " 0.249 spends more; raise --epsilon or take fewer steps"
    )


# --- select ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nu", "-1"), "--nu: -1.0 is not a number >= 0; 50 is DPLTM's"),
        (("--score", "additive", "--lambda", "inf"), "--lambda: inf is not a number >= 0"),
        (
            ("--nu", "1", "--sensitivity", "paper"),
            "--nu: 1 makes the sensitivity 0 (all scores are constant, or nu is 1 under the paper's rule), which no draw can"
            " be calibrated to; use another value",
        ),
        (
            ("--score", "additive", "--sensitivity", "paper"),
            "--sensitivity: paper is stated for --score product only; use --sensitivity exact",
        ),
        (("--score", "best"), "--score: 'best' is not one of product, additive"),
        (("--mechanism", "argmax"), "--mechanism: 'argmax' is not one of exponential, permute-and-flip"),
        (("--rule", "best"), "--rule: 'best' is not one of mechanism, smallest-within"),
        (("--sensitivity", "none"), "--sensitivity: 'none' is not one of exact, paper"),
        (("--adjacency", "any"), "--adjacency: 'any' is not one of add-remove, replace-one"),
        (
            ("--rule", "smallest-within"),
            "--eps1: smallest-within draws nothing and spends nothing; leave --eps1 out",
        ),
    ],
)
def test_select(refused, options, message):
    assert refused(*SELECT, *PRIVATE, *options) == message


def test_select_needs_a_set_and_eps1(refused):
    assert refused("select", *PRIVATE, "--eps1", "0.1") == "SET is missing: Folder of the ticket set."
    assert refused("select", "pub", *PRIVATE) == (
        "--eps1 is missing: the epsilon that the draw may spend; DPLTM uses 0.1"
    )


def test_exact_sensitivity_does_not_hold_for_predictors_of_the_same_records(refused):
    assert refused("select", "pri", *PRIVATE, "--eps1", "0.1", "--sensitivity", "exact") == (
        "--sensitivity: exact does not hold, since these tickets' predictors were trained on the records to be scored; score"
        " on other records (--dataset, --subset), or use --sensitivity paper"
    )


def test_the_papers_rule_needs_public_accuracies(refused):
    assert refused("select", "pri", "--rule", "smallest-within") == (
        "--rule: smallest-within looks at accuracies unprotected, so it needs public ones, and pri has provenance private;"
        " use --rule mechanism --eps1 0.1"
    )


# --- train ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--noise-multiplier", "1"),
            "--epsilon or --noise-multiplier: give one of them; --epsilon is the whole budget, such as 1",
        ),
        (("--batch-size", "720"), "--batch-size: 720 is not between 0 and the 719 records of digits"),
        (("--lr", "-1"), "--lr: -1.0 is not a positive number"),
        (("--optimizer", "lbfgs"), "--optimizer: 'lbfgs' is not one of sgd, momentum, adam, adagrad"),
        (
            ("--filter", "clamp"),
            "--filter: 'clamp' is not one of clip, per-layer, tanh, tanh-clip, radial-tanh, auto, normalize, sigmoid",
        ),
        (("--no-pre-clip",), "--no-pre-clip: only for --filter tanh, not clip"),
        (("--model", "mlp:4"), "--model: the ticket set decides the network; leave --model out"),
        (("--out", "pub"), "--out: pub exists already; choose another name or remove it first"),
    ],
)
def test_train(refused, options, message):
    assert refused(*TRAIN, *PRIVATE, *options) == message


def test_train_needs_a_set(refused):
    assert refused("train", *PRIVATE, "--epsilon", "1") == (
        "SET is missing: name a ticket set (SET or SET@ROUND), or train the whole network with --dense"
    )


@pytest.mark.parametrize("number", ["x", "", "-1", "1.0"])
def test_round_that_is_no_number(refused, number):
    assert refused("train", f"pub@{number}", *PRIVATE, "--epsilon", "1") == (
        f"SET@ROUND: {number!r} is not a round; write a whole number after @, such as pub@10"
    )


def test_round_that_is_not_there(refused):
    assert refused("train", "pub@3", *PRIVATE, "--epsilon", "1") == "pub@3: no such round; it has rounds 0 to 2"


def test_no_winner_yet(refused):
    assert refused("train", "pub", *PRIVATE, "--epsilon", "1") == (
        "pub: no winner was drawn yet; run dpltm select pub, or name a round as pub@ROUND"
    )


def test_a_winner_of_another_set(cwd, refused, cli):
    cli("select", "pri", *PRIVATE, "--eps1", "0.1", "--quiet")
    shutil.copy(cwd / "pri/selection.json", cwd / "pub/selection.json")
    assert refused("train", "pub", *PRIVATE, "--epsilon", "1") == (
        "pub/selection.json: does not belong to this ticket set; run dpltm select pub again"
    )


# --- tickets and data that do not fit, folders that are not what they should be ---


@pytest.mark.parametrize("command", [SELECT, TRAIN])
def test_feature_counts_that_differ(cwd, refused, command):
    np.savez(cwd / "thin.npz", x_train=X[:, :10], y_train=Y)
    assert refused(*command, "--dataset", "thin.npz") == (
        "pub: its network takes 64 features, but thin has 10; use records of the same shape, or carry it over with"
        " dpltm tickets transfer"
    )


@pytest.mark.parametrize("command", [SELECT, TRAIN])
def test_class_counts_that_differ(cwd, refused, command):
    np.savez(cwd / "three.npz", x_train=X, y_train=Y % 3)
    assert refused(*command, "--dataset", "three.npz") == (
        "pub: its network has 10 classes, but three has 3; use records with the same classes, or carry it over with"
        " dpltm tickets transfer"
    )


@pytest.mark.parametrize(
    "command",
    [("select", "{}", *PRIVATE, "--eps1", "0.1"), ("train", "{}@1", *PRIVATE, "--epsilon", "1")],
    ids=lambda command: command[0],
)
def test_not_a_ticket_set(cwd, refused, command):
    (cwd / "empty").mkdir()
    (cwd / "file").write_text("hello")
    for name, message in (
        ("empty", "empty: not a ticket set (no tickets.json in it); name a folder made by dpltm generate"),
        ("none", "none: no ticket set there; make one with dpltm generate --out none"),
        ("file", "file: no ticket set there; make one with dpltm generate --out file"),
    ):
        assert refused(*(part.format(name) for part in command)) == message


def test_a_damaged_ticket_set(cwd, refused):
    path = cwd / "pub/theta0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for command in (SELECT, TRAIN):
        assert refused(*command, *PRIVATE) == (
            "pub/tickets.json: the id does not match theta0 and masks; the set is damaged or was changed"
        )


@pytest.mark.parametrize("command", [SELECT, TRAIN])
def test_an_edited_ledger(cwd, refused, command):
    path = cwd / "pub/ledger.jsonl"
    changed = path.read_text().replace('"stop": 500000000', '"stop": 499999999')
    assert changed != path.read_text()
    path.write_text(changed)
    assert refused(*command, *PRIVATE) == (
        "pub/ledger.jsonl: line 2: the digest does not match: this line, or one before it, was changed after the fact"
    )


@pytest.mark.parametrize("command", [SELECT, TRAIN])
def test_a_ledger_that_cannot_be_written(refused, command):
    assert refused(*command, *PRIVATE, "--ledger", "/proc/none/ledger.jsonl") == (
        "/proc/none/ledger.jsonl: the ledger cannot be written: No such file or directory; nothing was spent"
    )


@pytest.mark.parametrize("command", [SELECT, TRAIN])
def test_two_neighbouring_relations_in_one_ledger(cli, refused, by_places, command):
    cli("train", "pub@2", *by_places, "--steps", "1", "--noise-multiplier", "9", "--quiet")
    assert refused(*command, *by_places, "--adjacency", "replace-one") == (
        "adjacency: the ledger holds events under add-remove and under replace-one, which have no common guarantee; use one"
        " relation throughout, or separate ledgers"
    )


# --- evaluate and datasets ---


def test_evaluate(cwd, cli, refused):
    cli("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "9", "--out", "r", "--quiet")
    np.savez(cwd / "thin.npz", x_train=X[:, :10], y_train=Y, x_test=X[:, 10:20], y_test=Y)
    np.savez(cwd / "half.npz", x_train=X, y_train=Y)
    assert refused("evaluate") == "RUN is missing: Folder of the run."
    assert refused("evaluate", "pub", "--dataset", "digits") == (
        "pub: not a run (no config.json in it); name a folder made by dpltm train --out pub"
    )
    assert refused("evaluate", "r", "--dataset", "thin.npz") == (
        "r: its network takes 64 features, but thin has 10; use records of the same shape"
    )
    assert refused("evaluate", "r", "--dataset", "half.npz") == (
        "--dataset: half has no test split; name a file with one by --test"
    )
    assert refused("evaluate", "r", "--dataset", "digits", "--bounds", "0,255") == (
        "--bounds: digits has (0.0, 255.0), the run was trained with (0.0, 16.0); use the same"
    )


def test_datasets_info(refused):
    assert refused("datasets", "info") == "NAME|FILE is missing: Name or path."
    assert refused("datasets", "info", "no.npz") == "--dataset no.npz: no such file; correct the path"


# --- usage ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bogus",), "No such command 'bogus'"),
        (("select", "--bogus"), "No such option: --bogus"),
        (("train", "--epsilon"), "Option '--epsilon' requires an argument"),
        (("train", "a", "b"), "Got unexpected extra argument(s) (b)"),
    ],
)
def test_usage(refused, arguments, message):
    assert refused(*arguments).startswith(message)


@pytest.mark.parametrize(("option", "value"), [("--rounds", "x"), ("--lr", "x"), ("--classes", "1.5")])
def test_values_of_another_type(refused, option, value):
    assert refused("generate", option, value).startswith(f"Invalid value for '{option}': ")


def test_the_last_thing_checked_is_still_before_anything_is_written(cwd, refused):
    """Many mistakes at once: one line, about one of them."""
    Path(cwd / "bad.npz").write_text("")
    refused("train", "nowhere@x", "--dataset", "bad.npz", "--epsilon", "-1", "--delta", "7", "--out", "pub")
