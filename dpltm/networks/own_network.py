"""A module of the user's own for some records: how records reach it, what is tried out, and what it is known by.

A built network is a copy of the module whose ``forward`` takes what all networks of dpltm take, ``(batch, features)``:
records are put into their shape, images as ``(channels, height, width)``, words as whole numbers, and ``.logits`` is taken
of what comes out. It is done in a subclass made for it, so all parameter names stay what they are.

Artifacts state what it is (``to_json``). Whoever loads one names the code again (``with_code``), and it is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from dpltm.errors import ArtifactError, CodeError, InputError, first_line
from dpltm.networks import KINDS, MAX_WEIGHTS, Batch, ModelSpec, Network, check_kind_takes, kind_name, resolve
from dpltm.networks.evaluation import OfValues, check_loss, scored_rows
from dpltm.networks.full_precision import seeded
from dpltm.networks.masks import Mask
from dpltm.networks.own import (
    MOST_OUTPUTS,
    RECORDS,
    Form,
    OwnModel,
    StartProvenance,
    buffers_of,
    check_module,
    class_of,
    copied,
    loaded_code,
    own_model,
    versions,
)
from dpltm.networks.state import OF_PYTORCH, content_id, evaluating, put, states_of, weights_of
from dpltm.privacy.entry import NO_LINEAGE, Lineage
from dpltm.randomness.noise import drawn_so_far
from dpltm.records import made_up as trials
from dpltm.records.dataset import Dataset
from dpltm.records.input_parts import InputPart, Parts
from dpltm.records.scaling import MAX_CHANNELS
from dpltm.records.split import Arrays, LabelForm
from dpltm.records.split import pieces as pieces_of

AGREE = 1e-3
"""Largest difference between outputs on two machines, over the largest output."""

ROWS = 32
"""Records that every network is tried with as it is made; before private ones are scored, as many as then are."""

MAX_TENSORS = 100_000
"""Most parameters and buffers."""


@dataclass(frozen=True, eq=False)
class OwnNetwork(Network):
    """A network of the user's own for some records.

    Attributes:
        form: how a record reaches the module.
        buffers: shapes and dtypes of those of the module, in order.
        frozen: names of the parameters that are not trained.
        outputs: on the made-up records, ``(8, k)`` float32, at the weights that its artifact holds.
        source_sha256: of the file of the code, as it was.
        start: weights in the place of the code's, by name.
        own: the code; None where it is not at hand.
    """

    form: Form = "stored"
    buffers: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    outputs: Tensor | None = None
    start_provenance: StartProvenance = "data-free"
    source_sha256: str | None = None
    start: Mapping[str, Tensor] | None = None
    own: OwnModel | None = None

    @property
    def edited(self) -> bool:
        """Whether the file of its code is another one than it was."""
        return self.own is not None and self.own.source_sha256 != self.source_sha256

    @cached_property
    def identity(self) -> str:
        """Digest of what artifacts state of it; and of its code as it is now, where that was edited."""
        digest = hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()
        if self.own is None or not self.edited:
            return digest
        return hashlib.sha256(f"{digest} {self.own.source_sha256}".encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return what artifacts state of it, beside text, features and classes: no code, and no weights."""
        assert self.outputs is not None
        return {
            "source_sha256": self.source_sha256,
            "record": list(self.record_shape),
            "tables": list(self.tables),
            **({} if self.labels is None else {"labels": [self.labels.dtype, list(self.labels.shape)]}),
            "form": self.form,
            **({"parts": [[*astuple(part), False] for part in self.parts]} if self.parts else {}),
            "parameters": [[name, list(shape)] for name, shape in self.parameter_shapes.items()],
            "buffers": [[name, list(shape), dtype] for name, (shape, dtype) in self.buffers.items()],
            "frozen": list(self.frozen),
            "prunable": list(self.prunable),
            "start_provenance": self.start_provenance,
            "outputs": [list(self.outputs.shape), content_id({"outputs": self.outputs.numpy()})],
        }

    @classmethod
    def from_json(cls, where: str, document: Mapping[str, Any], body: Any) -> OwnNetwork:
        """Return the network, without code and outputs, that ``body``, and a ``document`` called ``where``, state."""
        from dpltm.networks.layout import read

        try:
            network = cls(**read(document, body))
            network.check("the network")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = str(error) if isinstance(error, InputError) else "not the layout of a network"
            raise ArtifactError(f"{where}: own: {why}") from None
        return network

    def with_outputs(self, where: str, body: Mapping[str, Any], outputs: Tensor) -> OwnNetwork:
        """Return the same with the outputs that lie beside ``body``; ArtifactError if they are others."""
        if body["outputs"][1] != content_id({"outputs": outputs.numpy()}):
            raise ArtifactError(f"{where}: the outputs on made-up records are not the network's; damaged or changed")
        return replace(self, outputs=outputs)

    def check(self, where: str) -> None:
        """Raise InputError for what no module has, or that is too large."""
        shapes, names = self.parameter_shapes, [part.name for part in self.parts]
        weights = self.parameters + sum(math.prod(shape) for shape, _ in self.buffers.values())
        tensors = len(shapes) + len(self.buffers)
        if weights > MAX_WEIGHTS or tensors > MAX_TENSORS:
            raise InputError(
                f"{where} has {weights:,} weights in {tensors:,} tensors; {MAX_WEIGHTS:,} in {MAX_TENSORS:,} are taken"
            )
        trained = shapes.keys() - {*self.frozen}
        consistent = (
            self.text.isprintable()
            and (self.classes == 0) == (self.labels is not None)
            and math.prod(self.record_shape) == self.features
            and (not self.parts or sum(part.size for part in self.parts) == self.features)
            and len({*names}) == len(names)
            and all(map(str.isidentifier, names))
            and not shapes.keys() & self.buffers.keys()
            and bool(trained)
            and {*self.frozen} <= shapes.keys()
            and {*self.prunable} <= trained
            and all(len(shapes[name]) >= 2 for name in self.prunable)
        )
        with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
            if consistent and list(dict(Holder(self, "meta").named_parameters())) == list(shapes):
                return
        raise InputError(
            f"{where} has facts that contradict each other, or parameters whose names, or order, no module has"
        )

    @cached_property
    def source(self) -> dict[str, str]:
        """Digests of the modules that it runs (``dpltm.networks.own``), those that a training pass imports included."""
        assert self.own is not None
        model = self.build(0).train()
        with contextlib.suppress(Exception), seeded(0):  # whoever trains it refuses what fails
            model(self.made_up()).sum().backward()
        functions = [part for part in (self.loss, self.own.score, self.own.inputs, self.own.code) if callable(part)]
        modules = [module for part in (model, *functions) if isinstance(part, nn.Module) for module in part.modules()]
        return loaded_code([*functions, *map(class_of, modules)])

    @property
    def loss(self) -> Batch | None:
        return None if self.own is None else self.own.loss

    @property
    def score(self) -> Batch | None:
        score = None if self.own is None else self.own.score
        return score if score is None or self.labels is None else OfValues(score)

    def mask(self, tensors: Mapping[str, Tensor]) -> Mask:
        return Mask(tensors, self.prunable, self.frozen)

    def with_roles_of(self, other: Network) -> OwnNetwork:
        """Return the same where what ``other`` freezes, or may prune, is so by name; whose weights it may take over."""
        if not isinstance(other, OwnNetwork):
            return self
        frozen = tuple(name for name in self.parameter_shapes if name in (*self.frozen, *other.frozen))
        weights = tuple(name for name in self.parameter_shapes if name in other.prunable and name not in frozen)
        rank = get_args(StartProvenance).index
        start: StartProvenance = max(self.start_provenance, other.start_provenance, key=rank)
        return replace(self, frozen=frozen, prunable=weights, start_provenance=start)

    def check_code(self, label: str) -> None:
        if self.own is None:
            raise InputError(
                f"{label}: the code of its network, {self.text!a:.100}, is not at hand; name its model, as FILE.py:NAME or"
                " in dpltm.tickets.load(path, model=MyNet)"
            )

    def build(self, seed: int | None) -> nn.Module:
        """Build the network; see :func:`dpltm.networks.build`. Without code, a module that only holds weights."""
        if self.own is None:
            return Holder(self)
        module = self.new_module(seed)
        if self.start is not None:
            put(module, {**weights_of(module), **self.start})
        for name, value in module.named_parameters():
            value.requires_grad_(name not in self.frozen)
        return _adapted(module, self)

    def new_module(self, seed: int | None) -> nn.Module:
        """Return what the code gives: a copy of the instance, or what the factory makes under the seed."""
        assert self.own is not None
        code = self.own.code
        if isinstance(code, str):
            return ModelSpec(code, self.features, self.classes).build(0 if seed is None else seed)
        if isinstance(code, nn.Module):
            return copied(code, self.text)
        with seeded(seed or 0):
            try:
                module = code()
            except Exception as error:  # the user's own code
                raise CodeError(
                    f"`model`: {self.text} cannot be made without arguments: {first_line(error)}"
                ) from error
        if not isinstance(module, nn.Module):
            raise InputError(f"`model`: {self.text} gives a value of type {type(module).__name__}, no torch.nn.Module")
        return copied(module, self.text)  # or a factory could hand out one and the same

    def made_up(self, records: int = RECORDS) -> Tensor:
        """Return made-up records, ``(records, features)``: fractions, or positions."""
        parts = trials.fractions(records, self.features)
        if self.tables:
            sizes = torch.tensor(self.tables, dtype=torch.float64).repeat(self.features)[: self.features]
            parts = (parts * sizes).floor()
        return parts.float()

    def stored(self, x: Tensor) -> list[Tensor]:
        """Return the parts of records ``(batch, features)``, each in its own shape."""
        if self.parts:
            return [values for _, values in _pieces(x, self.parts)]
        return [(x.long() if self.tables else x).unflatten(1, self.record_shape)]

    def tried(self) -> OwnNetwork:
        """Return the network with its form and outputs; InputError where it is none for these records."""
        failures: list[InputError] = []
        for form in _forms(self):
            draft = replace(self, form=form)
            try:
                return replace(draft, outputs=_passed(draft, draft.build(0)))
            except InputError as error:
                failures.append(error)
        raise max(reversed(failures), key=lambda error: not isinstance(error, CodeError))  # rather where the code ran

    def with_code(self, model: OwnModel, values: Mapping[str, Tensor]) -> OwnNetwork:
        """Return the same network with its code at hand; ``values`` are the weights that ``outputs`` are of. InputError for
        other names, shapes, buffers or outputs, and for settings that the network has already."""
        for name in ("start", "freeze", "prunable", "start_provenance", "start_lineage"):
            if getattr(model, name) not in (None, (), ""):
                raise InputError(f"`{name}`: the network that was made says so itself; leave it out")
        network = replace(self, own=model, start=None)
        module = network.new_module(0)
        check_module(module, model.text)
        mine, stored = {**_shapes_of(module), **buffers_of(module)}, {**self.parameter_shapes, **self.buffers}
        if [*mine.items()] != [*stored.items()]:
            wrong = next((name for name in (*stored, *mine) if mine.get(name) != stored.get(name)), "")
            changed = f"{wrong} is {mine.get(wrong, 'gone')}, and was {stored.get(wrong, 'not there')}"
            raise InputError(
                f"`model`: {model.text} is another network than the one that this was made with:"
                f" {changed if wrong else 'its parameters, or buffers, are in another order'}"
            )
        built = network.build(0)
        put(built, values)
        outputs, kept = _passed(network, built), self.outputs
        assert kept is not None
        largest = max(float(kept.abs().max()), 1e-30)
        if outputs.shape != kept.shape or not torch.allclose(outputs, kept, rtol=0, atol=AGREE * largest):
            raise InputError(
                f"`model`: {model.text} has the same parameters, but computes something else with them: it is another"
                " network than the one that this was made with"
            )
        return network


class Holder(nn.Module):
    """Parameters and buffers of a network whose code is not at hand, zeros by their names."""

    network: OwnNetwork

    def __init__(self, network: OwnNetwork, device: str = "cpu") -> None:
        super().__init__()
        for name, shape in network.parameter_shapes.items():
            value = nn.Parameter(torch.zeros(shape, device=device), requires_grad=name not in network.frozen)
            module, last = self._place(name)
            module.register_parameter(last, value)
        for name, (shape, dtype) in network.buffers.items():
            module, last = self._place(name)
            module.register_buffer(last, torch.zeros(shape, dtype=getattr(torch, dtype), device=device))
        vars(self)["network"] = network  # whatever a layer is called

    def _place(self, name: str) -> tuple[nn.Module, str]:
        module: nn.Module = self
        *places, last = name.split(".")
        for part in places:
            if not part or part in OF_PYTORCH:
                raise KeyError(part)
            if part not in module._modules:
                setattr(module, part, nn.Module())  # ``add_module`` refuses names of methods, such as half
            module = cast(nn.Module, module._modules[part])
        return module, last

    def forward(self, x: Tensor) -> Tensor:
        self.network.check_code("this network")
        return x


def for_records(model: OwnModel, dataset: Dataset) -> OwnNetwork:
    """Return a network of the user's own for these records, tried out on made-up ones; InputError for what cannot be."""
    text, features = model.text, dataset.features
    if isinstance(model.code, str):
        check_kind_takes(text, dataset)
        text = resolve(model.code, dataset.input_shape, dataset.input_tables)
    draft = OwnNetwork(
        text=text,
        features=features,
        classes=dataset.classes,
        record_shape=dataset.input_shape,
        tables=dataset.input_tables,
        labels=dataset.labels,
        parts=dataset.input_parts,
        source_sha256=model.source_sha256,
        own=model if text == model.text else replace(model, code=text, text=text),
    )
    check_loss(draft)
    module = draft.new_module(0)
    draft = _laid_out(draft, module)
    first, second = weights_of(module), weights_of(draft.new_module(0))
    if [*first] != [*second] or not all(torch.equal(value, second[name]) for name, value in first.items()):
        raise InputError(f"`model`: {text} gives another network, or weights, for the same seed; draw by torch")
    start = model.given_start(module)
    provenance = model.provenance(module, lambda: draft.new_module(1), has_start=start is not None)
    lineage = model.start_lineage or NO_LINEAGE
    return replace(draft, start=start, start_provenance=provenance, lineage=lineage).tried()


def _laid_out(draft: OwnNetwork, module: nn.Module) -> OwnNetwork:
    """The network with the names and shapes of its module, which is checked."""
    assert draft.own is not None
    check_module(module, draft.text)
    shapes = _shapes_of(module)
    frozen = draft.own.frozen(module)
    weights = draft.own.may_be_pruned(shapes, frozen)
    draft = replace(draft, parameter_shapes=shapes, buffers=buffers_of(module), frozen=frozen, prunable=weights)
    draft.check("`model`: " + draft.text)
    return draft


def _shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.named_parameters()}


def _passed(network: OwnNetwork, model: nn.Module) -> Tensor:
    """The outputs that are kept, ``(8, k)`` float32, of a network that passes every trial."""
    states, x, where = states_of(model), network.made_up(), f"`model`: {network.text}"
    outputs = _run(network, model, x)
    shape = tuple(outputs.shape)
    told = network.labels is not None or (network.loss is not None and network.score is not None)
    if shape[:1] != (RECORDS,) or (not told and shape != (RECORDS, network.classes)):
        raise InputError(
            f"{where} gives outputs of shape {shape} for {RECORDS} records of {network.classes} classes;"
            " let dimension 0 be the record, and give one output a class, or `loss` and `score`, one value a record each"
        )
    if not bool(outputs.isfinite().all()):
        raise InputError(f"{where} gives outputs that are not finite for made-up records")
    if not torch.equal(outputs, _run(network, model, x, seed=1)):
        raise InputError(f"{where} gives another answer to the same records in eval(); does it draw, or keep a state?")
    _check_apart(network, model, ROWS)
    changed = [name for name, value in states_of(model).items() if value != states.get(name)]
    if changed:
        raise InputError(f"{where}: {changed[0]} changes with the records it sees; use a module without state")
    _check_functions(network, outputs)
    return _kept(outputs)


def _check_apart(network: OwnNetwork, model: nn.Module, rows: int) -> None:
    """Refuse a network whose outputs for a record, among so many, are not what it gives for the record alone."""
    x = network.made_up(rows).to(next(model.parameters()).device)

    def sees(x: Tensor) -> trials.Sights:
        return [trials.Sight("the outputs", model(x))]

    def own(x: Tensor) -> trials.Sights:
        (outputs,) = trials.alone(lambda row: [model(row)], x, model=model)
        return [trials.Sight("the outputs", outputs.squeeze(1))]

    ways = [(0, row, True) for row in (1 - x[0], *trials.constant(x[0]), *_short(network, model, x[:1]))]
    trial, before = trials.Trial(sees, own, ways), trials.mapped_tensors()
    with torch.no_grad(), evaluating(model), seeded(0):
        try:
            trial.run([*model.modules()], x)
            if trials.outlive(before):
                raise InputError(f"`model`: {network.text} {trials.KEPT}")
        except trials.Decides as error:
            raise InputError(f"`model`: {network.text}: {error}") from None
        except trials.Mixes:
            raise InputError(
                f"`model`: what {network.text} gives for a record depends on the others in the batch: no bound would hold;"
                " leave out whatever averages or compares over records, or takes another dimension than 0 for the record"
            ) from None


def _short(network: OwnNetwork, model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """What is left of a record, ``(1, ...)``, where it is short; all its parts are together."""
    parts = network.stored(x)
    declared = trials.tokens_of(model)
    ways = [
        list(trials.short_rows(part[0], () if part.is_floating_point() else declared)) or [part[0]] for part in parts
    ]
    for number in range(max(map(len, ways))):
        yield torch.cat([way[number % len(way)].flatten().float() for way in ways])


def _check_functions(network: OwnNetwork, outputs: Tensor) -> None:
    """Refuse a loss or a score that is not one value a record, or a score that goes by more than the record."""
    labels = _labels(network)
    for name, function in (("loss", network.loss), ("score", network.score)):
        if function is None:
            continue
        states = states_of(function)
        try:
            values = function(outputs, labels)
            varies = name == "score" and (_varies(function, outputs, labels) or states != states_of(function))
        except Exception as error:  # the user's own code
            raise CodeError(f"`{name}`: fails on {RECORDS} made-up records: {first_line(error)}") from error
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if shape != (RECORDS,):
            raise InputError(
                f"`{name}`: gives {shape} for outputs {tuple(outputs.shape)} and labels"
                f" {tuple(labels.shape)} of {RECORDS} records; give one value a record (reduction='none')"
            )
        if name == "score" and not bool(((values >= 0) & (values <= 1)).all()):
            raise InputError("`score`: gives values outside [0, 1] for made-up records; scale them by public numbers")
        if varies:
            raise InputError(
                "`score`: gives another value for the same record, or draws at random, so that a record more moves those"
                " of others; let it follow from the outputs and the label of one record alone"
            )


def _varies(score: Batch, outputs: Tensor, labels: Tensor) -> bool:
    """Whether a score of one record depends on what was scored before, or draws from a common generator at every try."""
    rows = [*zip(outputs.split(1), labels.split(1), strict=True)]
    rows += [(torch.zeros_like(output), label) for output, label in rows]
    scores, drawn = list[list[bytes]](), list[bool]()
    for order in (rows, rows[::-1], rows):
        before = drawn_so_far()
        values = [score(*row).detach().cpu().double().numpy().tobytes() for row in order]
        scores.append(values if order is rows else values[::-1])
        drawn.append(drawn_so_far() != before)
    return scores[0] != scores[1] or scores[0] != scores[2] or all(drawn)


def _labels(network: OwnNetwork) -> Tensor:
    """Labels of the made-up records; where whole numbers are no classes 0 and 1, which are labels of anything."""
    form = network.labels
    if form is None:
        return torch.arange(RECORDS) % network.classes
    parts = trials.fractions(RECORDS, math.prod(form.shape)).view(RECORDS, *form.shape)
    return parts.float() if form.dtype == "float32" else (2 * parts).long()


def source_facts(network: Network) -> dict[str, str]:
    """Return what decides a network's sums beside records, weights and options, for whoever goes on with a release."""
    if isinstance(network, OwnNetwork) and network.own is not None:
        return versions() | network.source
    return versions() | loaded_code(())


def check_scored_rows(network: Network, rows: int = 0) -> None:
    """Refuse a network of the user's own that mixes records where so many private ones are scored at once, before that is
    paid for; with so many ``rows``, or as many as ``evaluation.scored_rows`` says."""
    if isinstance(network, OwnNetwork) and network.own is not None:
        model = network.build(0)
        _check_apart(network, model, rows or scored_rows(model, network.made_up(1)))


def network_notes(network: Network) -> tuple[str, ...]:
    """Return what is said of starting weights that were handed in, of a score, and of code that was edited."""
    if not isinstance(network, OwnNetwork) or network.own is None:
        return ()
    notes, start = [], network.start_provenance
    if network.own.start_provenance is not None or start == "public":  # a file keeps what was declared
        notes.append(f"the starting weights of {network.text} were declared {start}; that was not checked")
    if network.score is not None:
        notes.append("accuracy is the mean of what the score of the network says of a record, from 0 to 1")
    if network.edited:
        notes.append(
            f"the file of {network.own.text} is not the one that the network was made with, though it computes the same for"
            " made-up records"
        )
    return tuple(notes)


def check_labels(network: Network, dataset: Dataset) -> None:
    """Refuse private labels that the loss, or the score, of a network does not take; what such a function says when it fails
    may tell of a label, so it is not passed on."""
    if not isinstance(network, OwnNetwork) or network.labels is None or network.own is None:
        return
    outputs = _run(network, network.build(0), network.made_up()[:1])

    def look(records: Arrays) -> None:
        for labels in map(torch.tensor, pieces_of(records.y)):
            predicted = outputs.expand(len(labels), *outputs.shape[1:])
            for name, function in (("loss", network.loss), ("score", network.score)):
                try:
                    shape = (len(labels),) if function is None else tuple(function(predicted, labels).shape)
                    failure = "" if shape == (len(labels),) else f"shape {shape}"
                except Exception as error:  # the user's own code
                    failure = type(error).__name__
                if failure:
                    raise InputError(
                        f"`{name}`: fails on a label of {dataset.name} ({failure}); give it labels that all are as it takes"
                        " them, such as tokens below their number"
                    )

    dataset.train.check(look)


def as_trained(network: Network, model: nn.Module) -> OwnNetwork | None:
    """Return a network of the user's own, known by its outputs after training, not finite ones as 0; None for a kind."""
    if not isinstance(network, OwnNetwork):
        return None
    outputs = _run(network, model, network.made_up()).nan_to_num(0.0, 0.0, 0.0)
    return replace(network, outputs=_kept(outputs), start=None)


def started_at(network: Network, theta0: Mapping[str, Tensor]) -> Network:
    """Return a network of the user's own, known by its outputs at weights that were drawn, rewound to or carried over."""
    if not isinstance(network, OwnNetwork):
        return network
    model = network.build(None)
    put(model, theta0)
    return as_trained(network, model) or network


def network_trained(
    model: OwnModel,
    shape: tuple[int, ...],
    tables: tuple[int, ...],
    labels: LabelForm | None = None,
    prunable: tuple[str, ...] | None = None,
    *,
    lineage: Lineage = NO_LINEAGE,
) -> tuple[OwnNetwork, nn.Module]:
    """Return the network of an instance that was trained elsewhere, for records of a ``shape`` as they are stored, and its
    copy. ``prunable`` are names of the weights that might have been pruned, None for all; others as of ``Network``."""
    classes = 1 if labels is None else 0
    digest = model.source_sha256
    draft = OwnNetwork(model.text, math.prod(shape), classes, shape, tables, labels, source_sha256=digest, own=model)
    draft = _laid_out(draft, draft.new_module(None))
    provenance = cast(StartProvenance, "lineage" if lineage else model.start_provenance or "data-free")
    weights = tuple(name for name in draft.prunable if prunable is None or name in prunable)
    draft = replace(draft, prunable=weights, start_provenance=provenance)
    built = draft.build(None)
    outputs = _run(draft, built, draft.made_up())
    if labels is None and (outputs.ndim != 2 or outputs.shape[1] < 2):
        raise InputError(
            f"`model`: {model.text} gives outputs of shape {tuple(outputs.shape)} for {RECORDS} records; of class numbers a"
            " run is of two classes and more, (records, classes); keep the weights and the report of others yourself"
        )
    trained = as_trained(replace(draft, classes=outputs.shape[1] if labels is None else 0), built)
    assert trained is not None
    return trained, built


def _kept(outputs: Tensor) -> Tensor:
    flat = outputs.detach().float().reshape(len(outputs), -1)
    return flat[:, :: -(-flat.shape[1] // MOST_OUTPUTS)].contiguous()


@torch.no_grad()
def _run(network: OwnNetwork, model: nn.Module, x: Tensor, seed: int = 0) -> Tensor:
    """Outputs in evaluation mode, whatever is drawn at random by a seed; CodeError where the module fails."""
    with evaluating(model), seeded(seed):
        return computed(model, x.to(next(model.parameters()).device), network.text, _shaped(network, x[:1])).cpu()


def _forms(network: OwnNetwork) -> tuple[Form, ...]:
    """Forms in which records may reach the module, in the order in which they are tried."""
    shape, own = network.record_shape, network.own
    if own is not None and isinstance(own.code, str):
        return ("flat",)
    if network.tables or network.parts or len(shape) not in (2, 3):
        return ("stored",)
    if len(shape) == 3:
        return ("image",) if shape[2] <= MAX_CHANNELS else ("stored",)
    return ("image", "stored")


def _shaped(network: OwnNetwork, x: Tensor) -> Any:
    """Records ``(batch, features)`` in the form that the module takes: a tensor; of several parts a mapping."""
    if network.parts:
        return apart(x, network.parts)
    if network.tables and x.is_floating_point():
        in_range = (x >= 0) & (x < max(network.tables))
        x = torch.where(in_range, x, 0).long()
    if network.form == "flat" or x.shape[1:] != (network.features,):
        return x
    x = x.unflatten(1, network.record_shape)
    if network.form == "image":
        x = x.unsqueeze(1) if len(network.record_shape) == 2 else x.movedim(-1, 1).contiguous()
    return x


def _adapted(module: nn.Module, network: OwnNetwork) -> nn.Module:
    """Give a module, in place, a class of its own whose ``forward`` takes ``(batch, features)``."""
    assert network.own is not None
    base = type(module)
    inputs = network.own.inputs

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        arguments: Any = _shaped(network, x)
        if inputs is not None:
            arguments = inputs(arguments)
        if isinstance(arguments, Mapping):
            return _logits(base.forward(self, **arguments), network.text)
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        return _logits(base.forward(self, *arguments), network.text)

    adapted = types.new_class(base.__name__, (base,))
    adapted.forward = forward  # type: ignore[attr-defined]
    adapted._dpltm_plain = base  # type: ignore[attr-defined]
    module.__class__ = adapted
    return module


def computed(module: nn.Module, x: Tensor, text: str, shaped: Tensor | Mapping[str, Tensor] | None = None) -> Tensor:
    """Return what a module gives for records, ``shaped`` as they reach its code; CodeError where that fails."""
    try:
        return _logits(module(x), text)
    except InputError:
        raise
    except Exception as error:  # the user's own code
        parts = shaped if isinstance(shaped, Mapping) else {"": x if shaped is None else shaped}
        shapes = ", ".join(f"{name} {tuple(part.shape[1:])}".strip() for name, part in parts.items())
        raise CodeError(
            f"`model`: {text} fails on made-up records of shape {shapes}: {first_line(error)}; `inputs` makes other"
            " arguments of them"
        ) from error


def _logits(outputs: Any, text: str) -> Tensor:
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor):
        raise InputError(f"`model`: {text} gives a value of type {type(outputs).__name__}; give a tensor, or .logits")
    return logits


def with_kind(network: Network, values: Mapping[str, Tensor]) -> Network:
    """Return a network that was read, with its code at hand where that is a kind that dpltm knows."""
    if isinstance(network, OwnNetwork) and kind_name(network.text) in KINDS:
        with contextlib.suppress(InputError):  # else it is another's, of the same name
            return network.with_code(own_model(network.text), values)
    return network


def network_of(where: str, document: Mapping[str, Any]) -> Network:
    """Return the network that a document of an artifact states, by ``model``, ``features``, ``classes`` and ``own``."""
    if document.get("own") is None:
        return ModelSpec(document["model"], document["features"], document["classes"])
    return OwnNetwork.from_json(where, document, document["own"])


def apart(x: Tensor, parts: Parts) -> dict[str, Tensor]:
    """Return the parts of scaled records ``(batch, values)`` by name, as they reach a module."""
    return {part.name: _unscaled(part, values) for part, values in _pieces(x, parts)}


def _pieces(x: Tensor, parts: Parts) -> list[tuple[InputPart, Tensor]]:
    """Each part, and its scaled values in its shape, ``(batch, ...)``."""
    return [
        (part, values.unflatten(1, part.shape) if part.shape else values[:, 0])
        for part, values in zip(parts, x.split([part.size for part in parts], 1), strict=True)
    ]


def _unscaled(part: InputPart, values: Tensor) -> Tensor:
    """Quantities as they are; whole numbers in the type that they were given in, from 0 to ``words`` - 1 for any values."""
    if not part.words:
        return values
    words = (values.double().nan_to_num() * (part.words - 1)).round().clamp(0, part.words - 1)
    if part.dtype.startswith("float"):
        return words.float()
    return words.to(getattr(torch, part.dtype) if part.dtype in _NARROW else torch.int64)


_NARROW = ("bool", "uint8", "int8", "int16", "int32")
