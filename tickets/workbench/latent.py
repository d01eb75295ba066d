"""``dpltm latent``: what protocols claim, schemes, the owners' messages, and what a server learns from them.

Only ``encoding`` sees private records: each message is locally private under replace-one, and encoding the same records
again is another release, with an entry of its own (docs/privacy-model.md 6). Nothing on the server's side costs more.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from dpltm.errors import ArtifactError, DpltmError, InputError, as_flags, naming
from dpltm.features import parse
from dpltm.features.inputs import with_feature_map
from dpltm.local import CODEBOOK, PROTOCOLS
from dpltm.local.channels import channel
from dpltm.local.codebook import Codebook, best_codebook, estimates, nearest_mean
from dpltm.local.latent import STEP_SIZES, EncodeRequest, EpsilonRequest, SchemeOptions, SchemeRequest, TrainRequest
from dpltm.local.scheme import BitStrings, FixedPoint, Messages, Scheme, channel_statistics, public_statistics
from dpltm.networks import ModelSpec, build, for_inputs, kind_name
from dpltm.networks.evaluation import accuracy, check_no_target
from dpltm.networks.full_precision import threads
from dpltm.networks.kind import MAX_FEATURES
from dpltm.networks.masks import Mask, network_id
from dpltm.networks.state import weights_of
from dpltm.options import EPSILON, Options, parse_numbers, recorded
from dpltm.options.data import DataOptions
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Lineage, Secret, lineage_from_json, lineage_of, to_json, value_from_json
from dpltm.privacy.ledger import Ledger, canonical
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.release import Once, pay, price
from dpltm.privacy.statement import json_figure, statement
from dpltm.progress import SILENT, Progress
from dpltm.pruning.generation import check_trained, shuffled_batches, train_plain
from dpltm.randomness.noise import FastSource, KeyedSource
from dpltm.records.batches import Inputs
from dpltm.records.catalogue import catalogue
from dpltm.records.dataset import Dataset
from dpltm.records.notes import bounds_notes, unit_notes
from dpltm.records.settle import check_delta
from dpltm.records.split import Public
from dpltm.tickets import files
from dpltm.tickets.feature_files import read_map, write_map
from dpltm.tickets.ledger_file import ledger_of, ledger_path
from dpltm.tickets.run import environment, write_config, write_metrics, write_network
from dpltm.tickets.tensors import read_tensors, write_tensors
from dpltm.tickets.workbench.records import open_dataset

# --- Claims beside what holds ---------------------------------------------------------------------------------------


def claim(request: EpsilonRequest, _: Progress = SILENT) -> dict[str, Any]:
    """Return the answer of ``dpltm latent epsilon``: what a setting claims for any two records, and what it certifies."""
    label, copies = request.label_epsilon or 0.0, request.copies
    protocol = PROTOCOLS[request.protocol]
    bits = channel(protocol.name, request.bits, request.epsilon, request.alpha)
    beyond = f"{protocol.name} claims its epsilon for strings with a single 1 (`one_hot`); these are any strings"
    due = {
        "neighbours are any two records (replace-one); what a server does with the bits costs nothing more": True,
        beyond: protocol.one_hot and not request.one_hot,
        protocol.caveat: protocol.caveat != "",
        "the label is not counted: it is public, or its `label_epsilon` adds to this": request.label_epsilon is None,
        f"{copies} copies of a record are {copies} releases, which the claim does not count": copies > 1,
    }
    chances = {
        name: values[: len(bits.pattern)].tolist() for name, values in zip("pq", bits.probabilities(), strict=True)
    }
    figures = {"nominal": request.epsilon + label, "certified": copies * (bits.certified(request.one_hot) + label)}
    return {**asdict(request), **chances, **figures, "notes": [note for note, is_due in due.items() if is_due]}


# --- Schemes --------------------------------------------------------------------------------------------------------

MAX_STATISTICS_RECORDS = 7000  # public records that statistics are taken from, at most
DIRECTIONS = ((0.75, 24), (1.5, 64), (3.0, 192), (math.inf, 256))  # of drawings, below an epsilon; best by kmnist-7k


def answer_of(options: SchemeOptions, values: int = 1, classes: int = 2) -> BitStrings | Codebook:
    """Return what is sent of records of so many values and classes; InputError for options that contradict each other."""
    if parse(options.features) is None:
        raise InputError("`features`: none leaves values as they are, whose scale differs; take unit")
    if options.protocol == CODEBOOK.name:
        _leave_out(options, "alpha", "format", "label_epsilon")
        return best_codebook(values, classes, options.epsilon)
    bits = parse_numbers("format", options.format or "0,0")
    if len(bits) != 2 or not all(part.is_integer() for part in bits):
        raise InputError(f"`format`: {options.format!r} is not of the form WHOLE,FRACTION, such as 4,5")
    label = _label_epsilon(options.label_epsilon)
    form = FixedPoint(int(bits[0]), int(bits[1]))
    return BitStrings(values, classes, form, options.protocol, options.epsilon, options.alpha, label)


def _leave_out(options: Options, *names: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(
                f"`{name}`: of bits; a codebook sends one index, and makes a linear network; leave it out"
            )


def _label_epsilon(text: str | None) -> float | None:
    """Epsilon of the response that sends the label; None for public ones."""
    if text == "public":
        return None
    with contextlib.suppress(TypeError, ValueError):
        if (epsilon := float(text or "")) in EPSILON:
            return epsilon
    said = " is missing:" if text is None else f": {text!r:.40} is not"
    raise InputError(
        f"`label_epsilon`{said} what the response that sends the label may spend, such as 1, or public, where labels are no"
        " secret"
    )


def make_scheme(public: Dataset, options: SchemeOptions, ledger: Ledger, progress: Progress = SILENT) -> Scheme:
    """Return the scheme by ``options``, from public records of the shape, range and classes of the private ones."""
    features = options.features
    if options.protocol == CODEBOOK.name and features == "drawings":  # as many directions as suit the budget
        features = f"drawings:{next(count for below, count in DIRECTIONS if options.epsilon < below)}"
    feature_map = with_feature_map(public, features).feature_map
    width = 1 if feature_map is None else feature_map.features
    answer = answer_of(options, width, public.classes)  # which refuses ``none``
    assert feature_map is not None
    if isinstance(answer, BitStrings) and answer.channel.bits > MAX_FEATURES:
        raise InputError(
            f"`format`: {answer.channel.bits:,} bits of {width:,} `features` are more than the {MAX_FEATURES:,} that a"
            " network takes; send fewer"
        )
    lineage = public.lineage | ledger.declare_once(*ledger.public(public, "a scheme of local privacy"))
    x = public.train.open(ledger.declared(public)).x
    if feature_map.base.channels:
        progress.say(f"fitting features to {public.name}")
        spaced = np.linspace(0, len(x) - 1, min(MAX_STATISTICS_RECORDS, len(x))).astype(int)
        feature_map = replace(feature_map, statistics=channel_statistics(feature_map, x[spaced]), lineage=lineage)
    if isinstance(answer, Codebook):  # only the direction of features counts: they stay as they are
        return Scheme(feature_map, np.zeros(width, np.float32), np.ones(width, np.float32), answer, lineage)
    progress.say(f"statistics of features of {public.name}")
    return Scheme(feature_map, *public_statistics(feature_map, x[:MAX_STATISTICS_RECORDS]), answer, lineage)


def agree(request: SchemeRequest, progress: Progress) -> dict[str, Any]:
    """Return the answer of ``dpltm latent scheme``, and write the scheme."""
    out = Path(request.out)
    files.check_free(out)
    with naming(dataset="public"):
        public = open_dataset(DataOptions(dataset=request.public, classes=request.classes, bounds=request.bounds))
        ledger = ledger_of(request.public, request, public.unit)
        scheme = make_scheme(public, request, ledger, progress)
    save_scheme(out, scheme)
    progress.say(f"wrote {out}")
    return {"scheme": request.out, **_facts(scheme), "notes": [*bounds_notes(public), *scheme.notes]}


def _facts(scheme: Scheme) -> dict[str, Any]:
    own = ("candidates",) if isinstance(scheme.answer, Codebook) else ("bits", "alpha", "label_epsilon")
    names = ("values", "classes", "protocol", "epsilon", "record_bytes", "nominal", "certified", *own)
    stated = {name: getattr(scheme.answer, name) for name in names}
    return {"id": scheme.id, "features": scheme.feature_map.text, **stated}


# --- The owners' side: messages -------------------------------------------------------------------------------------


def encoding(
    scheme: Scheme, dataset: Dataset, options: EncodeRequest, ledger: Ledger, progress: Progress = SILENT
) -> Once[Iterator[np.ndarray]]:
    """Return the release of messages of each record of a dataset, to be priced or paid for.

    Its one value yields some messages at a time, ``(n, record_bytes)`` uint8 (``Scheme.messages``).

    Guarantees:
        Each message is ``scheme.answer.certified``-locally private, on coins that follow from the secret of the release.
    """
    check_delta(options.delta, dataset)
    _check_fits(scheme, dataset)
    if dataset.names_units:
        raise InputError(
            "`unit_column`: a message is of one record, and those of a person add up; give a file with one row a person"
        )
    if dataset.hold_out or dataset.part.cut in ("record", "person"):
        raise InputError(
            f"`{'test' if dataset.hold_out else 'subset'}`: a fraction picks owners by a hash of what they hold, so whoever"
            " sends a message would tell something by sending one; encode all records, or those at places of a named dataset"
        )
    if options.augment and (len(dataset.train.shape) not in (2, 3) or dataset.tables):
        raise InputError(f"`augment`: moves images, and a record here is of shape {dataset.train.shape}; leave it out")
    copies = 1 + options.augment
    count = "one message" if copies == 1 else f"{copies} messages"
    clear = ", labels declared public" if scheme.answer.labels_are_public else ""
    words = f"{count} of each record by {scheme.answer.protocol}{clear}"
    guarantees = (Guarantee(scheme.answer.certified, adjacency="replace-one"),) * copies
    entry = Entry("local", ledger.part(dataset), guarantees, words, unit=dataset.unit)

    def drawn(secret: Secret) -> Iterator[np.ndarray]:
        train = dataset.train
        coins = KeyedSource(secret.child("coins"))
        with progress.progress(f"encoding the records of {dataset.name}", len(train)) as step:
            yield from scheme.messages(*train.open(secret), coins, step, options.augment)

    return Once(entry, lineage_of(scheme, dataset), drawn)


def _check_fits(scheme: Scheme, dataset: Dataset) -> None:
    agreed = scheme.feature_map
    for option, theirs, ours in (
        ("dataset", dataset.train.shape, agreed.shape),
        ("bounds", tuple(map(float, dataset.bounds)), agreed.bounds),
        ("classes", dataset.classes, scheme.answer.classes),
    ):
        if theirs != ours:
            raise InputError(
                f"`{option}`: {theirs} of {dataset.name} is not the scheme's {ours}; take records like those it is of"
            )


def send(request: EncodeRequest, progress: Progress, *, own: bool = False) -> dict[str, Any]:
    """Return the answer of ``dpltm latent encode``: the release entered, the records randomised, the messages written."""
    out = Path(request.out)
    files.check_free(out)
    files.check_writable(out)
    if ledger_path(request.dataset, request.ledger).absolute() == out.absolute():
        raise InputError("`ledger`: the messages go there; name another file")
    scheme = load_scheme(Path(request.scheme))
    unsaid = (request.classes, request.target_bounds, request.schema) == (None, None, None)
    if unsaid and request.dataset not in catalogue():
        request = replace(request, classes=scheme.answer.classes)  # owners need not know which classes others have
    dataset = open_dataset(request, for_training=False)
    check_no_target(dataset, "latent encode")
    ledger = ledger_of(request.dataset, request, dataset.unit)
    plan = encoding(scheme, dataset, request, ledger, progress)
    records = len(dataset.train) * (1 + request.augment)
    if request.dry_run:
        account = price(plan, ledger.book)
    else:
        paid = pay(lambda *_: plan, ledger)
        account = ledger.book.account(paid.lineage, own=True) if own else paid.account
        write_messages(out, scheme, records, next(paid.values), paid.lineage)
        progress.say(f"wrote {out}")
    size = "the number of messages shows how many records there are"
    notes = [*scheme.notes, *bounds_notes(dataset), size, *unit_notes(dataset)]
    facts = {"messages": str(out), "records": records, **_facts(scheme)}
    privacy = statement(account, request.delta, notes=notes).to_json()
    return {**({"dry_run": True} if request.dry_run else {}), **facts, "privacy": privacy}


# --- The server's side: networks that learn from messages -----------------------------------------------------------

FEW_BITS = 512  # on more bits, whose norm grows with their number, steps are as many times shorter
ROWS_SEEN = 10_000  # messages that accuracy in training is measured on, at most
MAX_POINTS = 10  # epochs after which accuracy is measured, at most
CHUNK = 512  # records at a time when accuracy is measured: a few hundred of bits take a quarter of a gigabyte


@dataclass(frozen=True)
class Learned:
    """A network that learned from messages: ``facts`` are told of it, and ``metrics`` of each epoch on bits."""

    spec: ModelSpec
    model: nn.Module
    facts: dict[str, Any]
    metrics: list[dict[str, Any]]


def messages_of_one(lineage: Lineage) -> int:
    """Return how many messages of one record there are at most, 1 or more; each ledger is another owner's."""
    entries = [entry for entry in lineage.entries if entry.kind == "local"]
    most = 1
    for home in {entry.home for entry in entries}:
        own = tuple(entry for entry in entries if entry.home == home)
        pieces = Account(own, home, unit=own[0].unit).pieces
        most = max([most, *(sum(len(entry.mechanisms) for entry in piece) for piece in pieces)])
    return most


def learn(
    scheme: Scheme,
    received: Sequence[np.ndarray],
    options: TrainRequest,
    test: Dataset | None = None,
    progress: Progress = SILENT,
    most: int = 1,
) -> Learned:
    """Train a network on messages, and measure accuracy where there are public test records.

    Args:
        received: messages, ``(n, record_bytes)`` uint8 each.
        test: a dataset whose test split is public.
        most: messages of one record among them (``messages_of_one``), for figures and notes.
    """
    answer, rows = scheme.answer, np.concatenate(received)
    spec = network(answer, options)
    if isinstance(answer, BitStrings) and options.batch_size > len(rows):
        raise InputError(f"`batch_size`: {options.batch_size} is not from 1 to {len(rows)}, the messages at hand")
    tested = None if test is None else _test_records(scheme, test, options, progress)
    began = time.perf_counter()
    model = build(spec, options.seed)
    certified, training, metrics = most * answer.certified, None, []
    if isinstance(answer, Codebook):
        model.load_state_dict(nearest_mean(answer, estimates(answer, rows)))
    else:
        messages = Messages(rows, answer, inputs=options.inputs)
        epsilon = json_figure(certified)
        metrics = [line | {"epsilon": epsilon} for line in _train(model, messages, options, tested, progress)]
        first = Messages(rows[:ROWS_SEEN], answer, inputs=options.inputs)
        training = accuracy(model, first, first.labels, chunk=CHUNK)
    seconds = time.perf_counter() - began
    check_trained(weights_of(model))
    several = f"{most} messages of one record are among these, and the figures are of all of them"
    alone = "the figures are those of one message; of a record that is in several they add up, in its owner's ledger"
    notes = [*bounds_notes(test, "agree on a scheme with others"), *scheme.notes, alone if most == 1 else several]
    if isinstance(answer, Codebook) and answer.labels == "signed":
        notes.append("classes are taken to be equally frequent: messages of this epsilon do not tell")
    facts = {
        "records": len(rows), "model": spec.text, "width": spec.features, "protocol": answer.protocol,
        "nominal": most * answer.nominal, "certified": certified, "seconds": seconds, "training": training,
        "accuracy": tested and accuracy(model, *tested[::2], chunk=CHUNK),
        "randomised": metrics[-1]["accuracy"] if metrics else None, "notes": notes,
    }  # fmt: skip
    return Learned(spec, model, facts, metrics)


def _train(
    model: nn.Module, messages: Messages, options: TrainRequest, tested: Tested | None, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield steps and accuracy on randomised test records after whole epochs."""
    done, epoch = 0, len(messages) // options.batch_size
    steps = max(1, round(options.epochs * len(messages) / options.batch_size))
    draw = torch.Generator().manual_seed(options.seed + 2**32)
    batches = shuffled_batches(len(messages), options.batch_size, draw)
    records = (messages, messages.labels)
    share = min(1.0, FEW_BITS / messages[:1].shape[1]) if options.inputs == "bits" else 1.0
    descent: float | Optimizer = options.lr or share * STEP_SIZES[options.optimizer]
    if options.optimizer != "sgd":
        descent = getattr(torch.optim, options.optimizer.capitalize())(model.parameters(), descent)
    dropped = list(model.children())[-1].register_forward_pre_hook(
        lambda layer, batch: functional.dropout(batch[0], options.dropout, layer.training)
    )
    with progress.progress("training on messages", steps) as step, threads(options.threads), torch.random.fork_rng([]):
        torch.manual_seed(options.seed + 2**33)
        for end in (*range(epoch, steps, epoch * math.ceil(steps / epoch / MAX_POINTS)), steps):
            watch = lambda taken, start=done: step(start + taken, "no more epsilon is spent")  # noqa: E731
            train_plain(model, Mask.dense(model), records, batches, end - done, descent, watch)
            yield {"step": (done := end), "accuracy": tested and accuracy(model, *tested[1:], chunk=CHUNK)}
    dropped.remove()


def network(answer: BitStrings | Codebook, options: TrainRequest) -> ModelSpec:
    """Return the network: a linear one for a codebook, since all that its messages tell is in the means of classes."""
    if isinstance(answer, Codebook):
        _leave_out(options, "inputs", "model")
        return ModelSpec("mlp", answer.values, answer.classes)
    name = options.model or "mlp:128"
    if kind_name(name) not in for_inputs("vectors"):
        raise InputError(f"`model`: {name} does not take bits; take mlp:WIDTH,WIDTH,..., such as mlp:128")
    return ModelSpec(name, answer.channel.bits, answer.classes)


Tested = tuple[Inputs, Inputs, Tensor]  # public test records as they are, and randomised if they are bits; labels


def _test_records(scheme: Scheme, test: Dataset, options: TrainRequest, progress: Progress) -> Tested:
    _check_fits(scheme, test)
    if test.test is None:
        raise InputError(f"`test`: {test.name} has no test split; name a dataset that has one")
    answer = scheme.answer
    x, y = test.test.open(Public("accuracy of what a server learned, which has no ledger"))
    progress.say("features of the test records")
    scores = scheme.scores(x)
    labels = torch.tensor(y)  # as they are, not those of messages
    if isinstance(answer, Codebook):
        return torch.from_numpy(scores), torch.zeros(0), labels
    as_is = Messages(answer.without_coins(scores, y), answer, randomised=False, inputs=options.inputs)
    return as_is, Messages(answer.randomise(scores, y, FastSource()), answer, inputs=options.inputs), labels


def receive(request: TrainRequest, progress: Progress) -> dict[str, Any]:
    """Return the answer of ``dpltm latent train``, and write the network that it trains on messages."""
    out = Path(request.out)
    files.check_free(out)
    files.check_writable(out)
    scheme = load_scheme(Path(request.scheme))
    rows, lineages = zip(*(read_messages(path, scheme) for path in _message_files(request.messages)), strict=True)
    sent = [entry.id for lineage in lineages for entry in lineage.entries if entry.kind == "local"]
    if len(set(sent)) != len(sent):
        raise InputError("`messages`: two files hold the same messages; every message counts once")
    lineage = lineage_of(scheme, *lineages)
    test = None
    if request.test is not None:
        test_options = DataOptions(dataset=request.test)
        if request.test not in catalogue():  # of a file, in the range and of the classes that were agreed on
            low, high = scheme.feature_map.bounds
            test_options = replace(test_options, bounds=f"{low!r},{high!r}", classes=scheme.answer.classes)
        with naming(dataset="test"):
            test = open_dataset(test_options)
    learned = learn(scheme, rows, request, test, progress, messages_of_one(lineage))
    body = as_flags({"run": str(out), **learned.facts})
    save_learned(out, scheme, learned, {**recorded(request), **files.published(body)}, lineage)
    progress.say(f"wrote {out}")
    return body


def _message_files(text: str) -> list[Path]:
    paths: list[Path] = []
    for path in map(Path, text.split(",")):
        paths += sorted(path.glob("*.msg")) if path.is_dir() else [path]
    if not paths:
        raise InputError(f"`messages`: {text:.80} holds no file that ends in .msg")
    return paths


# --- Files (docs/formats.md) ----------------------------------------------------------------------------------------

_SCHEME = files.Document(
    "dpltm-scheme", 2, frozenset({"id", "nominal", "certified", "answer", "feature_map", "lineage"})
)
_MESSAGES = files.Document("dpltm-messages", 2, frozenset({"scheme", "records", "record_bytes", "lineage"}))
STATISTICS = "statistics.safetensors"
ANSWERS: dict[str, type[BitStrings] | type[Codebook]] = {"bit-strings": BitStrings, "codebook": Codebook}
MAGIC = b"DPLTMMSG"  # first eight bytes of a file of messages


def save_scheme(target: Path, scheme: Scheme) -> None:
    """Write the folder of a scheme."""
    with files.new_folder(target) as folder:
        write_tensors(folder / STATISTICS, {"mean": scheme.mean, "deviation": scheme.deviation})
        answer = scheme.answer
        kind = next(kind for kind, form in ANSWERS.items() if isinstance(answer, form))
        body = {
            "id": scheme.id, "nominal": answer.nominal, "certified": answer.certified,
            "answer": {"kind": kind, **asdict(answer)}, "feature_map": write_map(folder, scheme.feature_map),
            "lineage": to_json(scheme.lineage),
        }  # fmt: skip
        files.write_json(folder / "scheme.json", _SCHEME.sealed(body))


def load_scheme(path: Path) -> Scheme:
    """Return the scheme in ``path``, checked against its id."""
    where = path / "scheme.json"
    if not where.is_file():
        raise ArtifactError(
            f"{path}: not a scheme (no scheme.json in it); make one with dpltm latent scheme --out {path}"
        )
    body = _SCHEME.read(where, files.MAX_LINEAGE)
    feature_map = read_map(path, where, body["feature_map"])
    if feature_map is None:
        raise ArtifactError(f"{where}: feature_map is missing")
    shapes = dict.fromkeys(("mean", "deviation"), (feature_map.features,))
    statistics = read_tensors(path / STATISTICS, shapes, "float32")
    match body["answer"]:
        case {"kind": "bit-strings" | "codebook" as kind, **fields}:
            answer = value_from_json(ANSWERS[kind], fields, f"{where}: answer")
        case _:
            raise ArtifactError(f"{where}: answer is not the description of what is sent")
    lineage = lineage_from_json(body["lineage"], f"{where}: lineage")
    try:
        scheme = Scheme(feature_map, **statistics, answer=answer, lineage=lineage)
    except InputError as error:
        raise ArtifactError(f"{where}: {error}") from None
    figures = [body[name] if isinstance(body[name], float) else math.nan for name in ("nominal", "certified")]
    if scheme.id != body["id"] or not np.allclose(figures, (answer.nominal, answer.certified), 1e-9, 0):
        raise ArtifactError(
            f"{where}: id, nominal or certified is not that of the answer; it is damaged or was changed"
        )
    if lineage != lineage | feature_map.lineage:
        raise ArtifactError(f"{where}: its lineage lacks what its features were made from")
    return scheme


def write_messages(target: Path, scheme: Scheme, records: int, blocks: Iterable[np.ndarray], lineage: Lineage) -> None:
    """Write a file of messages, some at a time."""
    header = {"scheme": scheme.id, "records": records, "record_bytes": scheme.answer.record_bytes}
    text = canonical(_MESSAGES.sealed({**header, "lineage": to_json(lineage)})).encode()
    with files.new_file(target) as staging, staging.open("wb") as stream:
        stream.write(MAGIC + len(text).to_bytes(8, "little") + text)
        for block in blocks:
            stream.write(np.ascontiguousarray(block).data)


def read_messages(path: Path, scheme: Scheme) -> tuple[np.ndarray, Lineage]:
    """Return messages that :func:`write_messages` wrote, ``(n, record_bytes)`` uint8, and what they are of."""
    data = files.read_bytes(path, sys.maxsize, links=True)
    length = int.from_bytes(data[8:16], "little")
    if data[:8] != MAGIC or len(data) < 16 or length > files.MAX_LINEAGE:
        raise ArtifactError(f"{path}: not a file of messages; make one with dpltm latent encode")
    header = _MESSAGES.checked(path, files.parse_json(path, data[16 : 16 + length]))
    if header["scheme"] != scheme.id:
        raise ArtifactError(
            f"{path}: encoded by another scheme ({str(header['scheme'])[:8]}) than this one ({scheme.id[:8]}); owners and"
            " server have to use the same"
        )
    count, width = header["records"], scheme.answer.record_bytes
    fits = type(count) is int and count > 0 and len(data) == 16 + length + count * width
    if header["record_bytes"] != width or not fits:
        raise ArtifactError(f"{path}: {len(data)} bytes are not what its header says; cut short, or damaged")
    rows = np.frombuffer(data, np.uint8, offset=16 + length).reshape(count, width)
    try:
        scheme.answer.check(rows)
        return rows, lineage_from_json(header["lineage"])
    except DpltmError as error:
        raise ArtifactError(f"{path}: {error}; it is damaged") from None


def save_learned(target: Path, scheme: Scheme, learned: Learned, result: Mapping[str, Any], lineage: Lineage) -> None:
    """Write a network that was trained on messages: a run, but from bits, which no command makes of records (no config)."""
    spec, model, mask = learned.spec, learned.model, Mask.dense(learned.model)
    with files.new_folder(target) as folder:
        weights = network_id(model, mask)
        stated = {"format": "dpltm-latent-run", "schema": 2, "scheme": scheme.id, "weights": weights}
        files.write_json(folder / "result.json", {**result, **stated})
        files.write_json(folder / "environment.json", environment())
        write_network(folder, model, mask)
        write_metrics(folder, learned.metrics)
        if isinstance(scheme.answer, Codebook):
            config = {"model": spec.text, "features": spec.features, "classes": spec.classes, "scheme": scheme.id}
            config |= {"bounds": list(scheme.feature_map.bounds), "feature_map": write_map(folder, scheme.feature_map)}
            write_config(folder, config)
        files.write_lineage(folder, lineage, weights)
