"""``dpltm latent scheme`` and ``encode``: what is agreed on, and what an owner's machine does with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dpltm.cli.common import (
    DataOptions,
    check_delta,
    check_epsilon,
    check_not_public,
    figure,
    load_dataset,
    not_held,
    parse_numbers,
    unit_notes,
)
from dpltm.cli.console import Console
from dpltm.cli.features import FeatureOptions, with_features
from dpltm.cli.latent import PROTOCOLS
from dpltm.cli.options import Call, option
from dpltm.errors import InputError
from dpltm.privacy.mechanisms import Guarantee

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console as RichConsole

    from dpltm.data import Dataset
    from dpltm.local.encoding import FixedPoint
    from dpltm.local.scheme import Scheme
    from dpltm.privacy.events import DatasetRef, Event

FACTS = (
    "features", "values", "bits", "candidates", "classes", "protocol", "epsilon", "alpha", "label_epsilon", "record_bytes",
)  # fmt: skip
"""Of a scheme, for people."""

STATISTICS = 7000
"""Public records that statistics of features are taken from, at most: the first ones."""


@dataclass(frozen=True)
class SchemeOptions:
    """Agree on how records are randomised, before any is: features, their public statistics, protocol, budget.

    The folder that is written is public. Every owner encodes with it (dpltm latent encode), and the server trains with it
    (dpltm latent train).
    """

    public: str | None = option(
        None,
        "Dataset declared public, of records like the private ones: statistics, shape, range and classes come from it.",
        metavar="NAME|FILE",
        required=True,
    )
    features: str = option(
        "scatter",
        "What a record is before it is encoded.",
        metavar="scatter[:J,L]|conv[:SEED]|wavelets[:J,Q]|unit[:K]|network:RUN",
    )
    components: int | None = option(None, "Principal components of public features that are kept.", metavar="K")
    classes: int | None = option(None, "Public number of classes.", metavar="K", shown="as in --public")
    bounds: str | None = option(
        None, "Public bounds of every value of a record.", metavar="LO,HI", shown="as in --public"
    )
    protocol: str = option(
        "codebook",
        "codebook: one index a record, label included, which learns; the others: bits as in LATENT.",
        choices=("codebook", *PROTOCOLS),
        metavar="codebook|ue|oue|rappor|moue|moue-hs|uer",
    )
    epsilon: float | None = option(None, "What the protocol claims for a record.", metavar="E", required=True)
    alpha: float | None = option(None, "Of moue, moue-hs and uer.", metavar="A")
    format: str | None = option(
        None,
        "Of bits: how many before and behind the point of each value; its sign is one more.",
        metavar="WHOLE,FRACTION",
        shown="0,0",
    )
    label_epsilon: str | None = option(
        None,
        "Of bits: epsilon of the randomised response that sends the label; or public: labels are sent as they are.",
        metavar="E|public",
    )
    out: str | None = option(None, "Folder to write.", metavar="DIR", required=True)


@dataclass(frozen=True)
class EncodeOptions(DataOptions):
    """Randomise records where they are; what is written may leave the machine.

    Every record is encoded by SCHEME with coins of its own. Encoding a record again is another release of it: name one
    --ledger for all of them to have that counted.
    """

    scheme: str | None = option(
        None, "Folder made by dpltm latent scheme.", metavar="SCHEME", argument=True, required=True
    )
    delta: float = option(1e-5, "Delta of the ledger's figure; what is sent itself has delta 0.", metavar="D")
    out: str | None = option(None, "File to write.", metavar="FILE", required=True)
    ledger: str | None = option(None, "Ledger file.", metavar="FILE", shown="FILE.ledger.jsonl")
    dry_run: bool = option(False, "Check everything and print what would be sent.")


def scheme_command(options: SchemeOptions, call: Call) -> None:
    """Runs ``dpltm latent scheme`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = make_scheme(options, console)
    console.result(body, lambda rich: _show_scheme(rich, body))


def make_scheme(options: SchemeOptions, console: Console) -> dict[str, Any]:
    """Makes and writes a scheme; returns the JSON answer."""
    from dpltm.features import IMAGES, parse
    from dpltm.local.bit_strings import BitStrings
    from dpltm.local.channels import Protocol
    from dpltm.local.codebook import best_codebook
    from dpltm.local.scheme import Scheme, no_statistics, public_statistics
    from dpltm.tickets.files import check_free
    from dpltm.tickets.identity import reference
    from dpltm.tickets.scheme_files import save_scheme

    check_free(Path(options.out or ""))
    form, wanted = check_options(options), parse(options.features)
    public = load_dataset(DataOptions(dataset=options.public, classes=options.classes, bounds=options.bounds))
    records = reference(public, public=True)
    statistical = isinstance(wanted, IMAGES) or options.components is not None
    given = FeatureOptions(
        features=options.features, public=options.public if statistical else None, components=options.components
    )
    found = with_features(public, given, console).feature_map
    assert found is not None
    epsilon = options.epsilon or 0.0
    if form is None:
        answer = best_codebook(found.features, public.classes, epsilon)
        scheme = Scheme(found, *no_statistics(found), answer, records)
    else:
        bits = BitStrings(
            found.features, public.classes, form, cast(Protocol, options.protocol), epsilon, options.alpha,
            _label_epsilon(options),
        )  # fmt: skip
        some = public.train.x[:STATISTICS]
        with console.progress(f"statistics of features of {public.name}", len(some)) as step:
            scheme = Scheme(found, *public_statistics(found, _in_turn(some, step)), bits, records)
    save_scheme(Path(options.out or ""), scheme)
    console.say(f"wrote {options.out}")
    return {"scheme": options.out, **_facts(scheme), "notes": notes_of(scheme)}


def check_options(options: SchemeOptions) -> FixedPoint | None:
    """How a value is written in bits; options that are out of range, or contradict each other, are refused."""
    from dpltm.features import parse
    from dpltm.local.channels import Protocol, channel

    check_epsilon("--epsilon", options.epsilon)
    form = _form(options)
    if parse(options.features) is None:
        raise InputError("--features: none leaves values as they are, whose scale differs; take unit")
    if form is not None:
        channel(cast(Protocol, options.protocol), form.length, options.epsilon or 0.0, options.alpha)
        _label_epsilon(options)
    return form


def _form(options: SchemeOptions) -> FixedPoint | None:
    """How a value is written in bits; None for a codebook, which has none."""
    from dpltm.local.encoding import FixedPoint

    if options.protocol == "codebook":
        for flag, value in (
            ("--alpha", options.alpha),
            ("--format", options.format),
            ("--label-epsilon", options.label_epsilon),
        ):
            if value is not None:
                raise InputError(f"{flag}: of bits; a codebook has one epsilon for the whole record, so leave it out")
        return None
    bits = parse_numbers("--format", options.format or "0,0")
    if len(bits) != 2 or not all(part.is_integer() for part in bits):
        raise InputError(f"--format: {options.format!r} is not of the form WHOLE,FRACTION, such as 4,5")
    return FixedPoint(int(bits[0]), int(bits[1]))


def _label_epsilon(options: SchemeOptions) -> float | None:
    """Of the response that sends a label; None where labels are declared public."""
    if options.label_epsilon is None:
        raise InputError(
            "--label-epsilon is missing: what the response that sends the label may spend, such as 1; or public, if labels"
            " are no secret"
        )
    if options.label_epsilon == "public":
        return None
    try:
        value = float(options.label_epsilon)
    except ValueError:
        raise InputError(f"--label-epsilon: {options.label_epsilon!r:.40} is neither a number nor public") from None
    check_epsilon("--label-epsilon", value)
    return value


def _in_turn(x: np.ndarray, step: Any) -> Iterator[np.ndarray]:
    from dpltm.local.scheme import ROWS

    for start in range(0, len(x), ROWS):
        yield x[start : start + ROWS]
        step(min(start + ROWS, len(x)))


def _facts(scheme: Scheme) -> dict[str, Any]:
    answer = scheme.answer
    return {
        "id": scheme.id,
        "features": scheme.feature_map.text,
        "values": answer.values,
        "classes": answer.classes,
        "protocol": answer.protocol,
        "epsilon": answer.epsilon,
        **answer.facts,
        "record_bytes": answer.record_bytes,
        "nominal": answer.nominal,
        "certified": answer.certified,
    }


def notes_of(scheme: Scheme) -> list[str]:
    """What a reader should know of any message of the scheme."""
    if _clear(scheme):
        return ["labels are sent as they are: declared public, and not counted"]
    return []


def encode_command(options: EncodeOptions, call: Call) -> None:
    """Runs ``dpltm latent encode`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = encode(options, console)
    console.result(body, lambda rich: _show_encoded(rich, body))


def encode(options: EncodeOptions, console: Console) -> dict[str, Any]:
    """Enters the release, randomises, writes the file; returns the JSON answer."""
    from dpltm.local.bit_strings import BitStrings
    from dpltm.noise import SecureSource
    from dpltm.privacy.events import HASHED, GuaranteeEvent, TrainingEvent
    from dpltm.privacy.ledger import check_budgets
    from dpltm.privacy.report import Nominal, report
    from dpltm.tickets.files import check_free, check_writable
    from dpltm.tickets.identity import reference
    from dpltm.tickets.ledger_file import open_ledger
    from dpltm.tickets.scheme_files import load_scheme, write_messages

    out = Path(options.out or "")
    check_free(out)
    check_writable(out)
    path = Path(options.ledger or f"{out}.ledger.jsonl")
    if path.absolute() == out.absolute():
        raise InputError("--ledger: the messages go there; name another file")
    scheme = load_scheme(Path(options.scheme or ""))
    dataset = _load(options, scheme)
    check_delta(options.delta, dataset)
    check_fits(scheme, dataset)
    if dataset.part.cut in HASHED:
        raise InputError(
            "--subset: a fraction picks owners by a hash of what they hold, so whoever sends a message would tell something"
            " by sending one; encode all records, or those at places of a named dataset"
        )
    records = reference(dataset, make_key=not options.dry_run)
    _check_private(scheme, options.scheme or "", records)
    behind = _behind(scheme, records)
    answer = scheme.answer
    clear = ", whose labels are declared public and sent as they are" if _clear(scheme) else ""
    what = f"one message of each record{clear}, by {answer.protocol} of scheme {scheme.id[:8]}"
    event = GuaranteeEvent(records, Guarantee(answer.certified, adjacency="replace-one"), what)
    before = open_ledger(path).events
    check_not_public(before, records)
    entered = (*not_held(behind, before), event)
    check_budgets(before, entered)
    touching = [old for old in (*before, *entered) if old.dataset.may_overlap(records)]
    notes = [*notes_of(scheme), "the number of messages shows how many records there are"]
    notes += unit_notes(options, dataset)
    if isinstance(answer, BitStrings):
        notes.append(
            "how many values saturated is told to nobody: it depends on the records, and no epsilon covers it"
        )
    if behind:
        notes.append(
            f"the network in front was trained on {scheme.feature_map.source}, elsewhere: whether these records are among"
            " them cannot be told here, so what that cost is counted, at twice its sensitivity (replace-one)"
        )
    privacy = report(
        touching, options.delta, "replace-one", notes, held=(*before, *entered)
    )  # what has no figure is refused here
    if not any(isinstance(old, TrainingEvent) for old in touching):
        privacy = replace(privacy, certified=replace(privacy.certified, sampling="none"))
    if touching == [event] and isinstance(answer, BitStrings):
        claim = Nominal(answer.nominal, 0.0, f"{answer.protocol}, as LATENT and its sources define it")
        privacy = replace(privacy, nominal=claim)
    if not options.dry_run:
        ledger = open_ledger(path)
        for release in entered:
            ledger.append(release)
        with console.progress(f"encoding the records of {dataset.name}", len(dataset.train)) as step:
            coded = scheme.messages(dataset.train.x, dataset.train.y, SecureSource(), step)
            write_messages(out, scheme, len(dataset.train), (rows for rows, _ in coded))
        console.say(f"wrote {out}")
    return {
        **({"dry_run": True} if options.dry_run else {}),
        "messages": str(out),
        "records": len(dataset.train),
        **_facts(scheme),
        "saturated": None,  # a key that scripts know; the count is a function of the records that nothing pays for
        "privacy": privacy.to_json(),
    }


def _load(options: EncodeOptions, scheme: Scheme) -> Dataset:
    """The records: one will do. Of a file of the owner's, the scheme knows how many classes there are."""
    from dpltm.data import catalogue

    if options.classes is None and catalogue().get(options.dataset or "") is None:
        options = replace(options, classes=scheme.answer.classes)
    return load_dataset(options, for_training=False)


def _check_private(scheme: Scheme, name: str, records: DatasetRef) -> None:
    """Raises InputError for records that the scheme was made from, which were declared public or have paid already."""
    source, network = scheme.feature_map.source, scheme.feature_map.network is not None
    from dpltm.tickets.identity import resolve as look_up

    for public in (scheme.public, None if network else source):
        if public is not None and look_up(public).surely_overlaps(records):
            raise InputError(
                f"--dataset: {public} was declared public for {name}, and {records} shares records with it; take others"
            )
    if network and source is not None and look_up(source).surely_overlaps(records):
        raise InputError(
            f"--dataset: the network in front of {name} was trained on {source}, and {records} shares records with it; take"
            " others"
        )


def _behind(scheme: Scheme, records: DatasetRef) -> tuple[Event, ...]:
    """What the network in front cost records that may be these, as a message's own relation has it."""
    from dpltm.privacy.parts import as_replace_one

    return tuple(as_replace_one(event) for event in scheme.feature_map.events if event.dataset.may_overlap(records))


def check_fits(scheme: Scheme, dataset: Dataset) -> None:
    """Raises InputError unless records of the dataset are of the shape, range and classes that were agreed on."""
    found = scheme.feature_map
    theirs = dataset.train.x.shape[1:], tuple(float(bound) for bound in dataset.bounds), dataset.classes
    agreed = found.shape, found.bounds, scheme.answer.classes
    for what, flag, one, other in zip(
        ("shape", "bounds", "classes"), ("--dataset", "--bounds", "--classes"), theirs, agreed, strict=True
    ):
        if one != other:
            raise InputError(f"{flag}: {what} of {dataset.name} are {one}, and the scheme was made for {other}")


def _show_scheme(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_notes, show_pairs

    show_pairs(rich, f"wrote {body['scheme']}", {key: body.get(key) for key in FACTS})
    show_figures(rich, body)
    show_notes(rich, body)


def _show_encoded(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_pairs, show_privacy

    title = "would encode" if body.get("dry_run") else f"wrote {body['messages']}"
    shown = ("records", "features", "values", "bits", "candidates", "record_bytes")
    show_pairs(rich, title, {key: body.get(key) for key in shown})
    show_figures(rich, body)
    show_privacy(rich, body["privacy"])


def _clear(scheme: Scheme) -> bool:
    """Whether labels are sent as they are."""
    from dpltm.local.bit_strings import BitStrings

    return isinstance(scheme.answer, BitStrings) and scheme.answer.label_epsilon is None


def show_figures(rich: RichConsole, body: dict[str, Any]) -> None:
    rich.print(
        f"certified local epsilon of a record = {figure(body['certified'], 7)} (replace-one, delta = 0)", style="bold"
    )
    rich.print(f"nominal local epsilon of a record = {figure(body['nominal'])} (claimed by: {body['protocol']})")
