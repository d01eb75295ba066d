"""What the adversary runs: every command that spends, and every pair of options that changes what is released."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import dpltm
import neighbours
from adversary import Case
from dpltm.estimators import TicketClassifier, TicketRegressor
from dpltm.filters import Automatic, Clip, Tanh
from dpltm.networks import ModelSpec, build
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger
from dpltm.tickets.ledger_file import open_ledger
from dpltm.training.descent import cross_entropy
from dpltm.verbs.private_loop import PrivateLoop
from neighbours import CLASSES, FLAT, LABELLED, LOUD, RECORDS, TWIN, WILD, WORDS, Adjacency, Kind
from own_networks import LABELS, PARTS
from own_networks import Case as OwnCase

MANY, FEW = f"--records {RECORDS} --classes {CLASSES}", f"--records 6 --classes {CLASSES} --unit-column who"
TABLE, PERSONS = f"--dataset d.npz {MANY}", f"--dataset d.npz {FEW}"
CSV, PERSONS_CSV = (f"--dataset d.csv --label y --bounds 0,1 {facts}" for facts in (MANY, FEW))
PUBLIC = f"--dataset pub.npz --classes {CLASSES}"

SHORT, NOISE, BUDGET, SCORED = "--steps 5 --batch-size 8", "--noise-multiplier 1", "--epsilon 3", "--eval-private 5"
SMALL = "--clip-norm 0.1"
"""Below the norm of most gradients of these networks, so that clipping shows."""
BALANCED = "--metric balanced-accuracy --class-shares 0.5,0.3,0.2"
OUT = "--json --out r"

DENSE, OF_PERSONS = f"train --dense {TABLE} {OUT}", f"train --dense {PERSONS} --per-unit 3 {OUT}"
TRAIN = f"{DENSE} --model mlp:4 {SHORT}"
HEAD = "--head least-squares --features unit"

TINY = "--model mlp:4 --rounds 3 --iterations 5 --batch-size 8"
SET = f"generate {PUBLIC} {TINY} --provenance public --out pub --quiet"
SCHEME = "latent scheme --public pub.npz --features unit --out s --quiet"

LONELY = (LOUD, FLAT, TWIN)
"""Records in question, also those that fall into several parts by their hashes."""

FILTERS = {
    "clip": SMALL,
    "per-layer": SMALL,
    "tanh": f"--tanh-range 0.01 {SMALL}",
    "tanh as printed": "--no-pre-clip --tanh-range 0.001",
    "tanh-clip": f"--tanh-range 0.01 {SMALL}",
    "radial-tanh": f"--tanh-range 0.01 {SMALL}",
    "auto": SMALL,
    "normalize": SMALL,
    "sigmoid": "--tanh-range 0.01",
}
"""Settings by which gradients are large enough for the filter to bite."""

CHOICES: dict[str, tuple[str, ...]] = {
    "filter": tuple(FILTERS),
    "optimizer": ("sgd", "momentum", "adam", "adagrad"),
    "schedule": ("constant", "linear", "cosine"),
    "average": ("none", "ema", "poly"),
    "adjacency": ("add-remove", "replace-one"),
    "noise": ("secure", "fast"),
    "precision": ("float32", "bfloat16"),
    "physical-batch": ("", "3"),
    "features": ("", "unit"),
    "eval-private": ("", "2"),
    "batch-size": ("8", "24"),
    "dataset": ("npz", "csv"),
}
"""Options of ``dpltm train`` that go with each other; nothing for an option that is left out."""

RELATIONS: tuple[Adjacency, ...] = ("add-remove", "replace-one")


def filtered(name: str) -> str:
    """Options of a filter by its name in ``FILTERS``."""
    return f"--filter {name.split()[0]} {FILTERS[name]}"


def pairwise(choices: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Few combinations that hold every pair of values of any two options; greedy, always the same."""
    names = list(choices)
    pairs = {
        ((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in choices[a] for y in choices[b]
    }  # fmt: skip
    while pairs:
        row = dict(min(pairs))  # begins with a pair that is missing, and takes what holds most others
        for name in names:
            if name not in row:
                row[name] = max(
                    choices[name],
                    key=lambda value, name=name: sum(  # type: ignore[misc]
                        tuple(sorted(((name, value), other), key=lambda one: names.index(one[0]))) in pairs
                        for other in row.items()
                    ),
                )
        pairs -= {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)}
        yield {name: row[name] for name in names}


def pair_cases() -> Iterator[Case]:
    """``dpltm train`` of a dense network, over pairs of options."""
    for row in pairwise(CHOICES):
        options = " ".join(
            f"--{name} {value}" for name, value in row.items() if value and name not in ("filter", "dataset")
        )
        data = {"npz": TABLE, "csv": CSV}[row["dataset"]]
        command = f"train --dense {data} --model mlp:4 --steps 5 {NOISE} {filtered(row['filter'])} {options} {OUT}"
        yield Case(
            "train " + " ".join(filter(None, row.values())),
            (command,),
            "table" if row["dataset"] == "npz" else "csv",
            cast(Adjacency, row["adjacency"]),
            odd=(LOUD, WILD if row["dataset"] == "csv" else FLAT),
        )


def train_cases() -> Iterator[Case]:
    """What pairs of options cannot hold: options that need each other, and other kinds of records."""
    yield from train_cases_under("add-remove")
    yield from train_cases_under("replace-one")
    full = (
        f"train --dense --dataset d.npz --records 80 --classes {CLASSES} --model mlp:4 --steps 3 --batch-size 80 {OUT}"
    )
    for name in ("clip", "per-layer", "normalize"):  # all are sampled, into one chunk
        yield Case(f"train {name} from a full chunk to one too large", (f"{full} {NOISE} {filtered(name)}",), "chunk")
    for name, options in {
        "centre --noise fast": f"--features unit --centre 0.5 {BUDGET} --noise fast",
        "budget-stop": f"{SMALL} --noise-multiplier 0.8 --epsilon 8 --budget-stop",
        "accountant rdp": f"{SMALL} {BUDGET} --accountant rdp",
        "sampling allocation --epsilon": f"{SMALL} --sampling allocation:2 {BUDGET}",
        "sampling allocation --microbatch": f"{SMALL} --sampling allocation:2 {NOISE} --microbatch 3",
        "microbatch --noise nominal": f"{SMALL} {NOISE} --microbatch 3 --noise nominal",
        "microbatch --physical-batch 2": f"{SMALL} {NOISE} --microbatch 3 --physical-batch 2",
        "microbatch --batch-size 24": f"{SMALL} {NOISE} --microbatch 3 --batch-size 24",
        "noise banded": f"{SMALL} {BUDGET} --noise banded --batch-size 4 --average ema",
        "filter dpsr-cg": "--noise-multiplier 0.01 --filter dpsr-cg",
    }.items():
        train = f"{DENSE} --model mlp:4 --steps 5" if "allocation" in name else TRAIN
        yield Case(f"train --{name}", (f"{train} {options}",))
    # with so little noise, second moments of so few records are released as well
    yield Case(
        "train --head least-squares with second moments", (f"{DENSE} {HEAD} --noise-multiplier 0.02",), odd=LONELY
    )
    people = f"{OF_PERSONS} {HEAD} --noise-multiplier 0.005"
    yield Case(
        "train --head least-squares people with second moments", (people,), "people", unit="who", odd=(LOUD, TWIN)
    )
    budgeted = f"{DENSE} {HEAD} --epsilon 60 --eval-private 1"
    yield Case("train --head least-squares --eval-private", (budgeted,), odd=LABELLED)
    for name, options in (
        ("sampling allocation", "--sampling allocation:2"),
        ("microbatch", "--microbatch 2 --batch-size 4"),
    ):
        people = f"{OF_PERSONS} --model mlp:4 {SMALL} {NOISE} --steps 4 {options}"
        yield Case(f"train --{name} --unit-column", (people,), "people", unit="who", odd=LONELY)
    for name in ("tanh", "tanh as printed", "sigmoid"):
        yield Case(f"train --noise nominal {name}", (f"{TRAIN} {filtered(name)} --noise nominal {BUDGET}",))
    for bands, more in (("2", ""), ("3", "--optimizer momentum --eval-private 2")):  # of three, all of a part are in
        command = f"{TRAIN} --steps 11 {SMALL} --noise banded:{bands} {NOISE} {more}"
        yield Case(f"train --noise banded:{bands}", (command,), odd=LONELY)
    alone = ("scatter:1,2", "conv:1", "unit:2", "drawings:9", "photographs:9", "fourier:8,1")
    for features in (*alone, "drawings:9+scatter:1,2"):
        command = f"{TRAIN} {SMALL} {BUDGET} --features {features} --centre 0.1"
        yield Case(f"train --features {features} --centre", (command,), "images")
    embed = f"{DENSE} --words {WORDS} --model embed:20:3,4 {SHORT} {SMALL} {NOISE}"
    yield Case("train embed", (embed,), "tokens", odd=(LOUD, FLAT))
    for network in ("mlp-tanh:4,3", "mlp", "lstm", "gru"):
        yield Case(f"train {network}", (f"{DENSE} --model {network} {SHORT} {SMALL} {NOISE}",), "images")
    if torch.cuda.is_available():
        for name, more in itertools.product(("clip", "per-layer", "tanh", "auto"), ("", "--physical-batch 3")):
            options = f"{filtered(name)} {NOISE} {more} --eval-private 2 --device cuda"
            yield Case(f"train --device cuda {name} {more}", (f"{TRAIN} {options}",))
    twice = [f"{TRAIN} {SMALL} {NOISE} --ledger all.jsonl --out {out}" for out in ("r1", "r2 --eval-private 0.5")]
    yield Case("train twice on one ledger", tuple(twice))


def train_cases_under(adjacency: Adjacency) -> Iterator[Case]:
    """The same, each under both relations."""
    to = f"--adjacency {adjacency}"
    for name, command, odd in (
        ("centre", f"{TRAIN} --features unit --centre 0.2 {BUDGET}", (LOUD, TWIN)),
        ("epsilon", f"{TRAIN} {SMALL} {BUDGET}", (LOUD, TWIN)),
        ("head least-squares", f"{DENSE} {HEAD} --noise-multiplier 0.2", LONELY),
        ("eval-private", f"{TRAIN} {SMALL} {NOISE} {SCORED}", LABELLED),
        ("eval-private balanced", f"{TRAIN} {SMALL} {NOISE} {SCORED} {BALANCED}", LABELLED),
    ):
        yield Case(f"train --{name} {adjacency}", (f"{command} {to}",), adjacency=adjacency, odd=odd)
    budget = f"--features unit --centre 0.2 {BUDGET}"
    for name, kind, options, odd in (
        ("head least-squares people", "people", f"{HEAD} --noise-multiplier 0.2", (LOUD, TWIN)),
        # some right
        ("eval-private people", "people", f"--model mlp:4 {NOISE} {SCORED} --steps 2 --batch-size 2", LABELLED),
        ("unit-column people 2", "people", f"--model mlp:4 {SMALL} --steps 4 --batch-size 2 {NOISE}", LONELY),
        ("unit-column people 6", "people", f"--model mlp:4 {SMALL} --steps 4 --batch-size 6 {budget}", LONELY),
        ("unit-column people csv 2", "people csv", f"--model mlp:4 {SMALL} --steps 4 --batch-size 2 {NOISE}", LONELY),
        ("unit-column people csv 6", "people csv", f"--model mlp:4 {SMALL} --steps 4 --batch-size 6 {budget}", LONELY),
    ):
        command = OF_PERSONS if kind == "people" else OF_PERSONS.replace(PERSONS, PERSONS_CSV)
        yield Case(
            f"train --{name} {adjacency}", (f"{command} {options} {to}",), cast(Kind, kind), adjacency, "who", odd
        )
    ends = f"--dataset d.csv --label y --bounds 0,1 --target-bounds 0,2 --records {RECORDS}"
    # splines, and what goes with them
    for name, data in (("classes", CSV), ("targets", ends), ("persons", PERSONS_CSV)):
        whose: dict[str, Any] = {"unit": "who"} if name == "persons" else {}
        quiet = f"train --dense {data} {OUT} --noise-multiplier 0.02 {'--per-unit 3' if whose else ''} {to}"
        kind = "people csv" if whose else "csv"
        yield Case(f"train a table of {name} {adjacency}", (quiet,), kind, adjacency, odd=LONELY, **whose)
    # of predictions at an end of the range, so that one record has all the error there is
    for metric in ("rmse", "mae"):
        error = f"train --dense {ends} {OUT} --model mlp:4 {SHORT} --lr 1000 {NOISE} {SCORED} --metric {metric} {to}"
        yield Case(f"train --eval-private {metric} {adjacency}", (error,), "csv", adjacency, odd=(*LABELLED, LOUD))
    for name in FILTERS:  # little noise on the sum of three groups, whose share in the answer must show
        groups = f"{TRAIN} --noise-multiplier 0.25 --microbatch 3 {filtered(name)} {to}"
        yield Case(f"train --microbatch {name} {adjacency}", (groups,), adjacency=adjacency)


def ticket_cases() -> Iterator[Case]:
    """Tickets: made under DP, drawn, trained; alone and one after the other."""
    make = f"generate {TABLE} {TINY} --criterion dp-train --epsilon 2 --out t --quiet"
    draw = f"select t {TABLE} --eps1 1 --score additive --json"
    train, budget = (
        f"train t@2 {TABLE} {SHORT} {SMALL} {NOISE} {OUT}",
        f"train t {TABLE} {SHORT} {SMALL} --epsilon 4 {OUT}",
    )
    yield Case("generate dp-train", (make,), odd=(LOUD, FLAT))
    yield Case("generate dp-train --features", (f"{make} --features unit",))
    yield Case("generate dp-train --ledger", (f"{make} --ledger all.jsonl",))
    yield Case("generate dp-train, train", (make, train))
    yield Case("generate dp-train, select, train", (make, draw, budget))
    yield Case("generate dp-train, train elsewhere", (make, f"{train} --ledger other.jsonl"))
    yield Case("generate dp-train --rewind", (f"{make} --rewind 1",))
    of_persons = (
        make.replace(TABLE, f"{PERSONS} --per-unit 3") + " --batch-size 3",
        draw.replace(TABLE, f"{PERSONS} --per-unit 3"),
    )
    yield Case("generate dp-train people, select", of_persons, "people", unit="who", odd=LONELY)
    for adjacency, score in itertools.product(RELATIONS, ("product", "additive")):
        draw = f"--eps1 20 --score {score} --adjacency {adjacency} --json"
        for name, kind, command, unit in (
            ("balanced", "table", f"select pub {TABLE} {BALANCED} {draw}", "record"),
            ("people", "people", f"select pub {PERSONS} {draw}", "who"),
        ):
            name = f"select {name} {score} {adjacency}"
            yield Case(name, (command,), cast(Kind, kind), adjacency, unit, LABELLED, before=(SET,))
    draws: dict[str, tuple[str, ...]] = {
        "mechanism": ("exponential", "permute-and-flip"),
        "score": ("product", "additive"),
        "sensitivity": ("exact", "paper"),
        "adjacency": RELATIONS,
        "eps1": ("0.5", "20"),
    }
    for values in itertools.product(*draws.values()):
        row = dict(zip(draws, values, strict=True))
        if (row["score"], row["sensitivity"]) == ("additive", "paper"):
            continue  # refused: the paper's rule is stated for the product
        command = f"select pub {TABLE} {' '.join(f'--{name} {value}' for name, value in row.items())} --json"
        relation = cast(Adjacency, row["adjacency"])
        yield Case("select " + " ".join(values), (command,), adjacency=relation, odd=LABELLED, before=(SET,))
    for name, target in itertools.product(("clip", "per-layer", "tanh as printed", "sigmoid"), ("pub@1", "pub@3")):
        command = f"train {target} {TABLE} {SHORT} {NOISE} {filtered(name)} {OUT}"
        yield Case(f"train {target} {name}", (command,), before=(SET,))
    free = f"generate {CSV} --criterion random --rounds 3 --out free --quiet"
    table = f"train free@3 {CSV} {OUT} --noise-multiplier 0.02"
    yield Case("train a ticket of a table", (free, table), "csv", odd=LONELY)
    train = f"train pub {TABLE} {SHORT} {SMALL} {BUDGET} {OUT}"
    yield Case("select, train", (f"select pub {TABLE} --eps1 1 --json", train), before=(SET,))


def latent_cases() -> Iterator[Case]:
    """Messages of records that are randomised one by one."""
    for protocol in ("codebook", "ue", "oue", "rappor", "moue", "moue-hs", "uer"):
        alpha = "--alpha 7" if protocol in ("moue", "moue-hs", "uer") else ""
        for epsilon, form in (("4", "0,0"), ("8", "0,1")):
            bits = "" if protocol == "codebook" else f"--format {form} --label-epsilon 1"
            scheme = f"{SCHEME} --protocol {protocol} --epsilon {epsilon} {alpha} {bits}"
            encode = f"latent encode s {TABLE} --out m.msg --json"
            yield Case(f"latent encode {protocol} {epsilon}", (encode,), "table", "replace-one", before=(scheme,))


RECIPE = f"""
[recipe]
title = "neighbours"
source = "nobody"
seeds = 2

[train]
dataset = "d.npz"
records = {RECORDS}
classes = {CLASSES}
batch-size = 8
steps = 3
clip-norm = 0.1
noise-multiplier = 1.0

[tickets.public]
dataset = "pub.npz"
classes = {CLASSES}
provenance = "public"
model = "mlp:4"
rounds = 2
iterations = 5
batch-size = 8

[[arm]]
name = "dense"
train = {{ model = "mlp:4" }}

[[arm]]
name = "drawn"
tickets = "public"
select = {{ eps1 = 0.5, score = "additive" }}

[[arm]]
name = "counted"
train = {{ model = "mlp:4", eval-private = 1.0 }}
"""


def dry_cases() -> Iterator[Case]:
    """Commands that only say what they would spend: they read the records, and tell nothing of them."""
    for command in (
        f"{TRAIN} {NOISE}",
        f"{TRAIN} --features unit --centre 0.2 {BUDGET}",
        f"generate {TABLE} {TINY} --epsilon 2 --out t --json --criterion dp-train",
        f"select pub {TABLE} --eps1 1 --json",
        f"latent encode s {TABLE} --out m.msg --json",
    ):
        relation: Adjacency = "replace-one" if command.startswith("latent") else "add-remove"
        before = f"{SCHEME} --epsilon 4" if command.startswith("latent") else SET
        yield Case(
            f"{command} --dry-run", (f"{command} --dry-run",), "table", relation, before=(before,), spends=False
        )


def sweep_cases() -> Iterator[Case]:
    """Recipes; and a search, which has public records only."""
    yield Case("run", ("run --config recipe.toml --jobs 1 --out o --quiet",), files={"recipe.toml": RECIPE})
    search = f"tune {PUBLIC} --model mlp:4 {BUDGET} --for-records 24 --batch-size 8 --epochs 1 --trials 2"
    yield Case("tune", (f"{search} --quiet --out t.toml",), before=(SET,), spends=False, reads=False)


DRAFT = "".join(f'[column.{name}]\nkind = "number"\nbounds = "private"\n\n' for name in "abcdef")
DRAFT += '[column.y]\nkind = "label"\nclasses = ["0", "1", "2"]\n'
"""Of the table of neighbours: with so few records an epsilon of hundreds finds something."""


def schema_cases() -> Iterator[Case]:
    """Bounds of columns found under DP, and what is trained by them."""
    find = "datasets schema d.csv --schema draft.toml --private 300 --json --out s.toml"
    train = f"train --dense --dataset d.csv --schema s.toml --records {RECORDS} --model mlp:4 {SHORT} {SMALL} {NOISE} {OUT}"
    for relation in RELATIONS:
        first = f"{find} --records {RECORDS} --adjacency {relation}"
        for name, commands in {"": (first,), ", train": (first, f"{train} --adjacency {relation}")}.items():
            name, odd = f"datasets schema{name} {relation}", (LOUD, WILD, FLAT)
            yield Case(name, commands, "csv", relation, files={"draft.toml": DRAFT}, odd=odd)
    files = {"draft.toml": DRAFT + '\n[column.who]\nkind = "ignored"\n'}
    find = f"{find} --records 6 --unit-column who"
    yield Case("datasets schema --unit-column", (find,), "people csv", unit="who", files=files, odd=LONELY)


LOOPS: dict[str, dict[str, Any]] = {
    "clip": {"filter": Clip(0.1)},
    "replace-one": {"filter": Clip(0.1), "adjacency": "replace-one"},
    "epsilon": {"filter": Automatic(0.1), "epsilon": 2.0},
    "tanh": {"filter": Tanh(1.0, 0.001)},
    "bfloat16": {"filter": Clip(0.1), "precision": "bfloat16", "physical_batch": 3},
    "whole batches": {"filter": Clip(0.1), "batch_size": RECORDS},
    "microbatch": {"filter": Clip(0.1), "microbatch": 3},
    "persons": {"filter": Clip(0.1), "unit": "who", "per_unit": 3, "batch_size": 2},
    "persons, replace-one": {"filter": Tanh(0.1, 0.01), "unit": "who", "per_unit": 3, "adjacency": "replace-one"},
}
"""Settings of a loop of the user's own."""


def loop_cases() -> Iterator[Case]:
    """``PrivateLoop``, with an optimizer that is the caller's."""
    for name, settings in LOOPS.items():
        relation = settings.get("adjacency", "add-remove")
        program = functools.partial(_loop, settings)
        odd, (kind, unit) = (LOUD, FLAT, TWIN), ("people", "who") if "unit" in settings else ("table", "record")
        yield Case(f"PrivateLoop {name}", (), kind, relation, unit, odd, program=program, reference=Part("arrays"))


def _loop(settings: dict[str, Any]) -> dict[str, bytes]:
    """Trains on ``d.npz``; returns the weights, and the report."""
    with np.load("d.npz") as stored:
        x, y = stored["x_train"].astype("f4") / 255, stored["y_train"]
        units = stored["who_train"] if "unit" in settings else None
    model = build(ModelSpec("mlp:4", x.shape[1], CLASSES), 0)
    given = {"batch_size": 8, "steps": 5, "delta": 1e-3, "records": RECORDS, "units": units, **settings}
    given["ledger"] = Ledger(unit=settings.get("unit", "record"))
    given |= {} if "epsilon" in given else {"noise_multiplier": 1.0}
    optimizer = torch.optim.Adam(model.parameters())
    loop = PrivateLoop(model, cross_entropy, x, y, **given)
    for step in loop:
        step.backward()
        optimizer.step()
    weights = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
    return {"weights": weights, "report": repr(loop.report()).encode()}


ESTIMATORS: dict[str, dict[str, Any]] = {
    "classifier": {"classes": CLASSES},
    "classifier, bounds a column": {
        "classes": CLASSES,
        "bounds": ([0.0] * 6, [255.0, 128.0, 64.0, 255.0, 255.0, 300.0]),
    },
    "classifier, replace-one": {"classes": CLASSES, "adjacency": "replace-one", "filter": "tanh"},
    "classifier, centred": {"classes": CLASSES, "features": "unit", "centre": 0.2, "epsilon": 3.0},
    "regressor": {"target_bounds": (0.0, 2.0)},
    "regressor, replace-one": {"target_bounds": (0.0, 2.0), "adjacency": "replace-one", "epsilon": 3.0},
}


def estimator_cases() -> Iterator[Case]:
    """The scikit-learn face: a whole fit, what it predicts for others, and what it says of privacy."""
    for name, settings in ESTIMATORS.items():
        program = functools.partial(_estimator, settings)
        odd = (LOUD, FLAT, TWIN)
        yield Case(f"estimator {name}", adjacency=settings.get("adjacency", "add-remove"), odd=odd, program=program)


def _estimator(settings: dict[str, Any]) -> dict[str, bytes]:
    """Fits on ``d.npz``; returns the weights, predictions for other records, and the reports."""
    with np.load("d.npz") as stored:
        x, y, x_test = stored["x_train"], stored["y_train"], stored["x_test"]
    given = {"bounds": (0, 255), "n_records": RECORDS, "delta": 1e-3, "batch_size": 8, "epochs": 2, "clip_norm": 0.1}
    given |= {"features": "fourier:16,2", "random_state": 0, "name": "d", **settings}
    given |= {"ledger": open_ledger(Path("l.jsonl"))}  # on disk, as an attacker would find it
    given |= {} if "epsilon" in given else {"noise_multiplier": 1.0}
    made = TicketRegressor(**given) if "target_bounds" in given else TicketClassifier(**given)
    made.fit(x, y)
    weights = b"".join(value.detach().numpy().tobytes() for value in made.run_.model.parameters())
    released = {"weights": weights, "predictions": made.predict(x_test).tobytes()}
    return {**released, "report": repr(made.privacy_).encode(), "run": repr(made.run_.privacy).encode()}


OWN: dict[str, tuple[OwnCase, Callable[[np.ndarray], Any], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "quantities": (LABELS["quantities"], np.asarray, lambda x, y: (x[:, :3] / 100.0 - y[:, None]).astype("f4")),
    "several labels": (LABELS["several labels"], np.asarray, lambda x, y: (x[:, :3] > 100 + y[:, None]).astype(int)),
    "labels of steps": (
        LABELS["labels of steps"],
        lambda x: np.resize(x.T, (20, len(x))).T.reshape(-1, 5, 4),
        lambda x, y: np.where(x[:, :5] > 250, -100, (x[:, :5] + y[:, None]) % 3),
    ),
    "mapping": (
        PARTS["mapping"],
        lambda x: {"input_ids": x[:, :5] % 12, "attention_mask": x[:, 1:6] % 2},
        lambda _, y: y,
    ),
}
"""Networks of the user's own, what they get of a record, and its label: several arrays; labels that are no class numbers."""


def own_cases() -> Iterator[Case]:
    """A winner and a training of a network of the user's own."""
    for name in OWN:
        for relation in RELATIONS if name in ("quantities", "mapping") else RELATIONS[:1]:
            program = functools.partial(_own, name, relation)
            yield Case(f"own network, {name}, {relation}", adjacency=relation, odd=(LOUD, FLAT, TWIN), program=program)


def _own(name: str, relation: str) -> dict[str, bytes]:
    """Draws a winner on ``d.npz`` and trains it; returns round, weights, accuracies and reports."""
    case, x_of, y_of = OWN[name]
    with np.load("d.npz") as stored:
        private = stored["x_train"].astype(int), stored["y_train"]
    others = neighbours.public("table", 30, 1)
    public = others.x.astype(int), others.y
    facts = dict(case.facts)
    making = {"provenance": "public", "rounds": 2, "iterations": 4, "batch_size": 8, "ledger": Ledger()}
    making |= {"model": case.model, **case.settings, **facts}
    tickets = dpltm.generate(x_of(public[0]), y_of(*public), **making)
    ledger = open_ledger(Path("l.jsonl"))
    facts |= {"name": "d", "records": RECORDS, "delta": 1e-3, "adjacency": relation, "ledger": ledger}
    x, y = x_of(private[0]), y_of(*private)
    winner = dpltm.select(tickets, x, y, eps1=1.0, score="additive", **facts)
    given = {"noise_multiplier": 1.0, "batch_size": 8, "steps": 4, "clip_norm": 0.1, "eval_private": 2.0}
    run = dpltm.train(winner, x, y, **given, **facts)
    weights = b"".join(value.detach().numpy().tobytes() for value in run.model.parameters())
    told = {"round": str(winner.round).encode(), "weights": weights, "metrics": repr(run.metrics).encode()}
    return {**told, "winner": repr(winner.privacy).encode(), "report": repr(run.privacy).encode()}


def part_cases() -> Iterator[Case]:
    """Parts by a public hash of each record: the one in question is in one of them, or in the other, and moves nobody.

    Two releases on two parts have two events, and cost what the costlier one does. No single one is sure to see the record.
    """
    options = f"--model mlp:4 {SHORT} {SMALL} {NOISE} --ledger l.jsonl {OUT}"
    given: dict[Kind, str] = {"table": TABLE, "csv": CSV}
    for (kind, data), cut in itertools.product(given.items(), ("0.6", "0.4:1.0", "0.2:0.8")):
        yield Case(
            f"train --subset {cut} {kind}", (f"train --dense {data} --subset {cut} {options}",), kind, odd=LONELY
        )
    half = f"train --dense {TABLE} {options} --subset"
    yield Case("train on both halves", (f"{half} 0.0:0.5", f"{half} 0.5:1.0 --out q"), odd=LONELY)


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "pairs": pair_cases,
    "train": train_cases,
    "tickets": ticket_cases,
    "latent": latent_cases,
    "dry": dry_cases,
    "sweeps": sweep_cases,
    "schemas": schema_cases,
    "loops": loop_cases,
    "estimators": estimator_cases,
    "own": own_cases,
    "parts": part_cases,
}


def all_cases() -> list[Case]:
    """Everything, in order."""
    return [case for family in FAMILIES.values() for case in family()]
