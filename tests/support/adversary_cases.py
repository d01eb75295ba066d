"""What the adversary runs: every command that spends, and every pair of options that changes what is released."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import dpltm
import neighbours
from adversary import Case, Command
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

TABLE: Command = ("--dataset", "d.npz", "--records", str(RECORDS), "--classes", str(CLASSES))
CSV: Command = ("--dataset", "d.csv", "--label", "y", "--bounds", "0,1", *TABLE[2:])
TOKENS: Command = (*TABLE, "--words", str(WORDS))
PERSONS: Command = (*TABLE[:2], "--records", "6", *TABLE[4:], "--unit-column", "who")
PERSONS_CSV: Command = ("--dataset", "d.csv", "--label", "y", "--bounds", "0,1", *PERSONS[2:])

BALANCED: Command = ("--metric", "balanced-accuracy", "--class-shares", "0.5,0.3,0.2")

SHORT: Command = ("--steps", "5", "--batch-size", "8")
NOISE: Command = ("--noise-multiplier", "1")
TRAIN: Command = ("train", "--dense", *TABLE, "--model", "mlp:4", *SHORT, "--json", "--out", "r")
TRAIN_ALL: Command = ("train", "--dense", *TABLE)
HEAD: Command = (*TRAIN_ALL, "--head", "least-squares", "--features", "unit", "--json", "--out", "r")
LITTLE: Command = ("--noise-multiplier", "0.2")
QUIET: Command = ("--noise-multiplier", "0.02")
"""With so little noise, second moments of so few records are released as well."""

PARTED = (LOUD, TWIN, FLAT)
"""Records whose hashes fall into several parts."""

SMALL: Command = ("--clip-norm", "0.1")
"""Below the norm of most gradients of these networks, so that clipping shows."""

PUBLIC: Command = ("--dataset", "pub.npz", "--classes", str(CLASSES))
TINY: Command = ("--model", "mlp:4", "--rounds", "3", "--iterations", "5", "--batch-size", "8")
SET: Command = ("generate", *PUBLIC, *TINY, "--provenance", "public", "--out", "pub", "--quiet")
SCHEME: Command = ("latent", "scheme", "--public", "pub.npz", "--features", "unit", "--out", "s", "--quiet")

FILTERS: dict[str, Command] = {
    "clip": SMALL,
    "per-layer": SMALL,
    "tanh": ("--tanh-range", "0.01", *SMALL),
    "tanh as printed": ("--no-pre-clip", "--tanh-range", "0.001"),
    "tanh-clip": ("--tanh-range", "0.01", *SMALL),
    "radial-tanh": ("--tanh-range", "0.01", *SMALL),
    "auto": SMALL,
    "normalize": SMALL,
    "sigmoid": ("--tanh-range", "0.01"),
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
        name = row["filter"]
        options: list[str] = ["--filter", name.split()[0], *FILTERS[name]]
        for option in ("optimizer", "schedule", "average", "adjacency", "noise", "precision"):
            options += [f"--{option}", row[option]]
        for option in ("physical-batch", "features", "eval-private", "batch-size"):
            options += [f"--{option}", row[option]] if row[option] else []
        data = TABLE if row["dataset"] == "npz" else CSV
        command = ("train", "--dense", *data, "--model", "mlp:4", "--steps", "5", *NOISE, *options)
        yield Case(
            "train " + " ".join(value for value in row.values() if value),
            ((*command, "--json", "--out", "r"),),
            "table" if row["dataset"] == "npz" else "csv",
            cast(Adjacency, row["adjacency"]),
            odd=(LOUD, WILD if row["dataset"] == "csv" else FLAT),
        )


def train_cases() -> Iterator[Case]:
    """What pairs of options cannot hold: options that need each other, and other kinds of records."""
    budget, scored = ("--epsilon", "3"), ("--eval-private", "5")
    for adjacency in RELATIONS:
        to = ("--adjacency", adjacency)
        centre = ("--features", "unit", "--centre", "0.2", *budget)
        yield Case(f"train --centre {adjacency}", ((*TRAIN, *centre, *to),), adjacency=adjacency)
        head = (*HEAD, *LITTLE, *to)
        yield Case(f"train --head least-squares {adjacency}", (head,), adjacency=adjacency, odd=(LOUD, FLAT, TWIN))
        persons = ("train", "--dense", *PERSONS, "--per-unit", "3", *HEAD[len(TRAIN_ALL) :], *LITTLE, *to)
        yield Case(
            f"train --head least-squares people {adjacency}", (persons,), "people", adjacency, "who", (LOUD, TWIN)
        )
        yield Case(f"train --epsilon {adjacency}", ((*TRAIN, *SMALL, *budget, *to),), adjacency=adjacency)
        counted = (*TRAIN, *SMALL, *NOISE, *scored, *to)
        yield Case(f"train --eval-private {adjacency}", (counted,), adjacency=adjacency, odd=LABELLED)
        balanced = (*TRAIN, *SMALL, *NOISE, *scored, *BALANCED, *to)
        yield Case(f"train --eval-private balanced {adjacency}", (balanced,), adjacency=adjacency, odd=LABELLED)
        counted = ("train", "--dense", *PERSONS, "--per-unit", "3", "--model", "mlp:4", *NOISE, *scored, *to)
        counted = (
            *counted,
            "--steps",
            "2",
            "--batch-size",
            "2",
            "--json",
            "--out",
            "r",
        )  # which leave some answers right
        yield Case(f"train --eval-private people {adjacency}", (counted,), "people", adjacency, "who", LABELLED)
        for kind, data in (("people", PERSONS), ("people csv", PERSONS_CSV)):
            command = ("train", "--dense", *data, "--per-unit", "3", "--model", "mlp:4", *SMALL, *to)
            command = (*command, "--steps", "4", "--json", "--out", "r")
            for size, more in (("2", NOISE), ("6", ("--features", "unit", "--centre", "0.2", *budget))):
                name = f"train --unit-column {kind} {size} {adjacency}"
                yield Case(
                    name, ((*command, "--batch-size", size, *more),), kind, adjacency, "who", (LOUD, FLAT, TWIN)
                )
    full = ("train", "--dense", *TABLE[:2], "--records", "80", *TABLE[4:], "--model", "mlp:4", "--steps", "3")
    full = (*full, "--batch-size", "80", *NOISE, "--json", "--out", "r")  # all are sampled, into one chunk
    for name in ("clip", "per-layer", "normalize"):
        command = (*full, "--filter", name, *FILTERS[name])
        yield Case(f"train {name} from a full chunk to one too large", (command,), "chunk")
    fast = (*TRAIN, "--features", "unit", "--centre", "0.5", *budget, "--noise", "fast")
    yield Case("train --centre --noise fast", (fast,))
    some = (*TRAIN, *SMALL, "--noise-multiplier", "0.8", "--epsilon", "8", "--budget-stop")
    yield Case("train --head least-squares with second moments", ((*HEAD, *QUIET),), odd=(LOUD, FLAT, TWIN))
    people = ("train", "--dense", *PERSONS, "--per-unit", "3", *HEAD[len(TRAIN_ALL) :], "--noise-multiplier", "0.005")
    yield Case(
        "train --head least-squares people with second moments", (people,), "people", unit="who", odd=(LOUD, TWIN)
    )
    budgeted = (*HEAD, "--epsilon", "60", "--eval-private", "1")
    yield Case("train --head least-squares --eval-private", (budgeted,), odd=LABELLED)
    yield Case("train --budget-stop", (some,))
    drawn = ("train", "--dense", *TABLE, "--model", "mlp:4", "--steps", "5", "--sampling", "allocation:2", *SMALL)
    for more in (budget, (*NOISE, "--microbatch", "3"), (*NOISE, "--clip-quantile", "0.5")):
        yield Case(f"train --sampling allocation {more[-2]}", ((*drawn, *more, "--json", "--out", "r"),))
    cut = (*TRAIN, *SMALL, "--sampling", "truncated:36")
    for more in (budget, (*NOISE, "--microbatch", "3"), (*NOISE, "--adjacency", "replace-one")):
        adjacency = "replace-one" if "replace-one" in more else "add-remove"
        yield Case(f"train --sampling truncated {more[-2]}", ((*cut, *more),), adjacency=adjacency)
    people = (
        "train",
        "--dense",
        *PERSONS,
        "--per-unit",
        "3",
        "--model",
        "mlp:4",
        "--sampling",
        "allocation:2",
        *SMALL,
    )
    people = (*people, *NOISE, "--steps", "4", "--json", "--out", "r")
    yield Case("train --sampling allocation --unit-column", (people,), "people", unit="who", odd=(LOUD, FLAT, TWIN))
    for name in ("tanh", "tanh as printed", "sigmoid"):
        command = (*TRAIN, "--filter", name.split()[0], *FILTERS[name], "--noise", "nominal", *budget)
        yield Case(f"train --noise nominal {name}", (command,))
    for name, adjacency in itertools.product(FILTERS, RELATIONS):
        quiet = ("--noise-multiplier", "0.25")  # on the sum of three groups, whose share in the answer must show
        groups = (*quiet, "--microbatch", "3", "--filter", name.split()[0], *FILTERS[name], "--adjacency", adjacency)
        yield Case(f"train --microbatch {name} {adjacency}", ((*TRAIN, *groups),), adjacency=adjacency)
    for name, start, more in (
        ("clip", "0.02", ()),
        ("clip", "20", ("--adjacency", "replace-one")),
        ("clip", "0.1", ("--physical-batch", "3")),
        ("clip", "5", ("--microbatch", "3")),
    ):
        moving = ("--noise-multiplier", "1", "--filter", name, "--clip-norm", start, "--clip-quantile", "0.5", *more)
        relation = "replace-one" if "replace-one" in more else "add-remove"
        yield Case(
            f"train --clip-quantile {name} {start} {' '.join(more)}",
            ((*TRAIN, *moving),),
            adjacency=cast(Adjacency, relation),
            odd=(LOUD, FLAT, TWIN),
        )
    yield Case("train dpsr-cg", ((*TRAIN, "--noise-multiplier", "0.01", "--filter", "dpsr-cg"),))
    for more in (("--noise", "nominal"), ("--physical-batch", "2"), ("--batch-size", "24")):
        yield Case(f"train --microbatch {' '.join(more)}", ((*TRAIN, *SMALL, *NOISE, "--microbatch", "3", *more),))
    for bands, more in (("2", NOISE), ("3", (*NOISE, "--optimizer", "momentum", "--eval-private", "2"))):
        command = (
            *TRAIN,
            "--steps",
            "11",
            *SMALL,
            "--noise",
            f"banded:{bands}",
            *more,
        )  # of three, all of a part are in
        yield Case(f"train --noise banded:{bands}", (command,), odd=(LOUD, TWIN, FLAT))
    command = (*TRAIN, *SMALL, *budget, "--noise", "banded", "--batch-size", "4", "--average", "ema")
    yield Case("train --noise banded", (command,))
    people = ("train", "--dense", *PERSONS, "--per-unit", "3", "--model", "mlp:4", *SMALL, *NOISE, "--microbatch", "2")
    people = (*people, "--steps", "4", "--batch-size", "4", "--json", "--out", "r")
    yield Case("train --microbatch --unit-column", (people,), "people", unit="who", odd=(LOUD, FLAT, TWIN))
    yield Case("train --accountant rdp", ((*TRAIN, *SMALL, *budget, "--accountant", "rdp"),))
    alone = ("scatter:1,2", "conv:1", "unit:2", "drawings:9", "photographs:9", "fourier:8,1")
    for features in (*alone, "drawings:9+scatter:1,2"):
        command = (*TRAIN, *SMALL, *budget, "--features", features, "--centre", "0.1")
        yield Case(f"train --features {features} --centre", (command,), "images")
    embed = ("train", "--dense", *TOKENS, "--model", "embed:20:3,4", *SHORT, *SMALL, *NOISE, "--json", "--out", "r")
    yield Case("train embed", (embed,), "tokens", odd=(LOUD, FLAT))
    for network in ("mlp-tanh:4,3", "mlp", "lstm", "gru"):
        command = ("train", "--dense", *TABLE, "--model", network, *SHORT, *SMALL, *NOISE, "--json", "--out", "r")
        yield Case(f"train {network}", (command,), "images")
    if torch.cuda.is_available():
        for name, more in itertools.product(("clip", "per-layer", "tanh", "auto"), ((), ("--physical-batch", "3"))):
            options = ("--filter", name, *FILTERS[name], *NOISE, *more, "--eval-private", "2", "--device", "cuda")
            yield Case(f"train --device cuda {name} {' '.join(more)}", ((*TRAIN, *options),))
    first = (*TRAIN[:-1], "r1", *SMALL, *NOISE, "--ledger", "all.jsonl")
    second = (*TRAIN[:-1], "r2", *SMALL, *NOISE, "--ledger", "all.jsonl", "--eval-private", "0.5")
    yield Case("train twice on one ledger", (first, second))


def ticket_cases() -> Iterator[Case]:
    """Tickets: made under DP, drawn, trained; alone and one after the other."""
    make = ("generate", *TABLE, *TINY, "--criterion", "dp-train", "--epsilon", "2", "--out", "t", "--quiet")
    yield Case("generate dp-train", (make,), odd=(LOUD, FLAT))
    yield Case("generate dp-train --features", ((*make, "--features", "unit"),))
    yield Case("generate dp-train --ledger", ((*make, "--ledger", "all.jsonl"),))
    train = ("train", "t@2", *TABLE, *SHORT, *SMALL, *NOISE, "--json", "--out", "r")
    yield Case("generate dp-train, train", (make, train))
    draw = ("select", "t", *TABLE, "--eps1", "1", "--score", "additive", "--json")
    budget = ("train", "t", *TABLE, *SHORT, *SMALL, "--epsilon", "4", "--json", "--out", "r")
    yield Case("generate dp-train, select, train", (make, draw, budget))
    yield Case("generate dp-train, train elsewhere", (make, (*train, "--ledger", "other.jsonl")))
    yield Case("generate dp-train --rewind", ((*make, "--rewind", "1"),))
    make = (
        "generate",
        *PERSONS,
        *TINY[:-1],
        "3",
        "--criterion",
        "dp-train",
        "--epsilon",
        "2",
        "--out",
        "t",
        "--quiet",
    )
    draw = ("select", "t", *PERSONS, "--per-unit", "3", "--eps1", "1", "--score", "additive", "--json")
    commands = ((*make, "--per-unit", "3"), draw)
    yield Case("generate dp-train people, select", commands, "people", unit="who", odd=(LOUD, FLAT, TWIN))
    for adjacency, score in itertools.product(RELATIONS, ("product", "additive")):
        draw = (
            "select",
            "pub",
            *TABLE,
            "--eps1",
            "20",
            "--score",
            score,
            "--adjacency",
            adjacency,
            *BALANCED,
            "--json",
        )
        yield Case(f"select balanced {score} {adjacency}", (draw,), adjacency=adjacency, odd=LABELLED, before=(SET,))
        draw = ("select", "pub", *PERSONS, "--eps1", "20", "--score", score, "--adjacency", adjacency, "--json")
        yield Case(f"select people {score} {adjacency}", (draw,), "people", adjacency, "who", LABELLED, before=(SET,))
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
        options = [part for name, value in row.items() for part in (f"--{name}", value)]
        command = ("select", "pub", *TABLE, *options, "--json")
        relation = cast(Adjacency, row["adjacency"])
        yield Case("select " + " ".join(values), (command,), adjacency=relation, odd=LABELLED, before=(SET,))
    for filter in ("clip", "per-layer", "tanh as printed", "sigmoid"):
        for target in ("pub@1", "pub@3"):
            options_of = ("--filter", filter.split()[0], *FILTERS[filter])
            command = ("train", target, *TABLE, *SHORT, *NOISE, *options_of, "--json", "--out", "r")
            yield Case(f"train {target} {filter}", (command,), before=(SET,))
    select = ("select", "pub", *TABLE, "--eps1", "1", "--json")
    train = ("train", "pub", *TABLE, *SHORT, *SMALL, "--epsilon", "3", "--json", "--out", "r")
    yield Case("select, train", (select, train), before=(SET,))


def latent_cases() -> Iterator[Case]:
    """Messages of records that are randomised one by one."""
    for protocol in ("codebook", "ue", "oue", "rappor", "moue", "moue-hs", "uer"):
        alpha = ("--alpha", "7") if protocol in ("moue", "moue-hs", "uer") else ()
        for epsilon, form in (("4", "0,0"), ("8", "0,1")):
            bits = () if protocol == "codebook" else ("--format", form, "--label-epsilon", "1")
            scheme = (*SCHEME, "--protocol", protocol, "--epsilon", epsilon, *alpha, *bits)
            encode = ("latent", "encode", "s", *TABLE, "--out", "m.msg", "--json")
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
    make = ("generate", *TABLE, *TINY, "--epsilon", "2", "--out", "t", "--json")
    for command in (
        (*TRAIN, *NOISE),
        (*TRAIN, "--features", "unit", "--centre", "0.2", "--epsilon", "3"),
        (*make, "--criterion", "dp-train"),
        ("select", "pub", *TABLE, "--eps1", "1", "--json"),
        ("latent", "encode", "s", *TABLE, "--out", "m.msg", "--json"),
    ):
        relation: Adjacency = "replace-one" if command[0] == "latent" else "add-remove"
        before = ((*SCHEME, "--epsilon", "4") if command[0] == "latent" else SET,)
        name = " ".join(command[:2] if command[0] in ("latent", "select") else command)
        yield Case(f"{name} --dry-run", ((*command, "--dry-run"),), "table", relation, before=before, spends=False)


def sweep_cases() -> Iterator[Case]:
    """Recipes; and a search, which has public records only."""
    run = ("run", "--config", "recipe.toml", "--jobs", "1", "--out", "o", "--quiet")
    yield Case("run", (run,), before=(("write", "recipe.toml", RECIPE),))
    search = ("tune", *PUBLIC, "--model", "mlp:4", "--epsilon", "3", "--for-records", "24", "--batch-size", "8")
    search = (*search, "--epochs", "1", "--trials", "2", "--quiet", "--out", "t.toml")
    yield Case("tune", (search,), before=(SET,), spends=False, reads=False)


DRAFT = "".join(f'[column.{name}]\nkind = "number"\nbounds = "private"\n\n' for name in "abcdef")
DRAFT += '[column.y]\nkind = "label"\nclasses = ["0", "1", "2"]\n'
"""Of the table of neighbours: with so few records an epsilon of hundreds finds something."""


def schema_cases() -> Iterator[Case]:
    """Bounds of columns found under DP, and what is trained by them."""
    data = ("--records", str(RECORDS))
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "s.toml", *data, "--model", "mlp:4", *SHORT)
    for relation in RELATIONS:
        to = ("--adjacency", relation)
        find = ("datasets", "schema", "d.csv", "--schema", "draft.toml", *data, *to, "--private", "300", "--json")
        find = (*find, "--out", "s.toml")
        before = (("write", "draft.toml", DRAFT),)
        odd = (LOUD, WILD, FLAT)
        yield Case(f"datasets schema {relation}", (find,), "csv", relation, before=before, odd=odd)
        then = (*train, *SMALL, *NOISE, *to, "--json", "--out", "r")
        yield Case(f"datasets schema, train {relation}", (find, then), "csv", relation, before=before, odd=odd)
    whose = DRAFT + '\n[column.who]\nkind = "ignored"\n'
    find = ("datasets", "schema", "d.csv", "--schema", "draft.toml", "--records", "6", "--private", "300", "--json")
    find = (*find, "--unit-column", "who", "--out", "s.toml")
    before = (("write", "draft.toml", whose),)
    yield Case(
        "datasets schema --unit-column", (find,), "people csv", unit="who", before=before, odd=(LOUD, FLAT, TWIN)
    )


LOOPS: dict[str, dict[str, Any]] = {
    "clip": {"filter": Clip(0.1)},
    "replace-one": {"filter": Clip(0.1), "adjacency": "replace-one"},
    "epsilon": {"filter": Automatic(0.1), "epsilon": 2.0},
    "tanh": {"filter": Tanh(1.0, 0.001)},
    "bfloat16": {"filter": Clip(0.1), "precision": "bfloat16", "physical_batch": 3},
    "whole batches": {"filter": Clip(0.1), "batch_size": RECORDS},
    "microbatch": {"filter": Clip(0.1), "microbatch": 3},
    "quantile": {"filter": Clip(0.1, clip_quantile=0.5), "microbatch": 3},
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
    "regressor": {"target_bounds": (0.0, 2.0), "bins": 4},
    "regressor, replace-one": {"target_bounds": (0.0, 2.0), "bins": 2, "adjacency": "replace-one", "epsilon": 3.0},
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
    given |= {"ledger": functools.partial(open_ledger, Path("l.jsonl"))}  # on disk, as an attacker would find it
    given |= {} if "epsilon" in given else {"noise_multiplier": 1.0}
    made = TicketRegressor(**given) if "target_bounds" in given else TicketClassifier(**given)
    made.fit(x, y)
    weights = b"".join(value.detach().numpy().tobytes() for value in made.run_.model.parameters())
    released = {"weights": weights, "predictions": made.predict(x_test).tobytes()}
    return {**released, "report": repr(made.privacy_).encode(), "run": repr(made.run_.privacy).encode()}


OWN: dict[str, tuple[OwnCase, Callable[[np.ndarray], Any], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "quantities": (
        LABELS["quantities"],
        np.asarray,
        lambda x, y: (x[:, :3] / 100.0 - y[:, None]).astype("f4"),
    ),
    "several labels": (
        LABELS["several labels"],
        np.asarray,
        lambda x, y: (x[:, :3] > 100 + y[:, None]).astype(int),
    ),
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
    "by place": (
        replace(PARTS["mapping"], layout={"words": {"0": 12, "1": 2}}),
        lambda x: {"0": x[:, :5] % 12, "1": x[:, 1:6] % 2},
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
    given: dict[Kind, Command] = {"table": TABLE, "csv": CSV}
    for (kind, data), cut in itertools.product(given.items(), ("0.6", "0.4:1.0", "0.2:0.8")):
        options = (*data, "--subset", cut, "--model", "mlp:4", *SHORT, *SMALL, *NOISE, "--json", "--ledger", "l.jsonl")
        yield Case(f"train --subset {cut} {kind}", (("train", "--dense", *options, "--out", "r"),), kind, odd=PARTED)
    half = ("train", "--dense", *TABLE, "--model", "mlp:4", *SHORT, *SMALL, *NOISE, "--json", "--ledger", "l.jsonl")
    both = ((*half, "--subset", "0.0:0.5", "--out", "r"), (*half, "--subset", "0.5:1.0", "--out", "q"))
    yield Case("train on both halves", both, odd=PARTED)


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
