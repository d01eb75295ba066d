"""Layouts: what artifacts say of networks of the user's own, and modules that hold their weights without code.

A layout is data. It is read, compared and shown; nothing in it is ever followed to code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from dpltm.errors import ArtifactError, InputError
from dpltm.networks import MAX_NAME_LENGTH, MAX_WEIGHTS, Network
from dpltm.networks.kind import MAX_FEATURES, MAX_WIDTH
from dpltm.networks.state import OF_PYTORCH, content_id, persistent_buffers
from dpltm.records.input_parts import DTYPES as PART_DTYPES
from dpltm.records.input_parts import MAX_WORDS, InputPart
from dpltm.records.split import LabelForm

T = TypeVar("T")

Form = Literal["flat", "stored", "image"]
"""How a record reaches the module: in a row; in the shape in which it is stored; or ``(channels, height, width)``."""

StartProvenance = Literal["data-free", "public", "lineage"]
"""What starting weights depend on: no records; public ones; those of a lineage."""

RECORDS, MOST_OUTPUTS = 8, 1024
"""Made-up records that a network is known by, and most outputs of each that are kept."""

MAX_TENSORS = 100_000
"""Most parameters and buffers."""

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Of buffers."""


@dataclass(frozen=True)
class Buffer:
    """Shape and dtype of a persistent buffer."""

    shape: tuple[int, ...]
    dtype: str


def buffers_of(module: nn.Module) -> dict[str, Buffer]:
    """Return shape and dtype of every persistent buffer, by name."""
    return {
        name: Buffer(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for name, value in persistent_buffers(module).items()
    }


@dataclass(frozen=True, eq=False)
class Layout(Network):
    """A network of the user's own as artifacts state it: no code, and no weights.

    Attributes:
        form: how a record reaches the module.
        buffers: of the module, in order.
        frozen: names of the parameters that are not trained.
        outputs: on the made-up records, ``(8, k)`` float32, at the weights that the artifact holds.
        source_sha256: of the file of the code, as it was.
    """

    form: Form = "stored"
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    outputs: Tensor | None = None
    start_provenance: StartProvenance = "data-free"
    source_sha256: str | None = None

    def no_code(self, label: str) -> InputError:
        """Return what is raised where its code is needed; ``label`` says whose network it is."""
        return InputError(
            f"{label}: the code of its network, {self.text!a:.100}, is not at hand; name its model, as FILE.py:NAME or in"
            " dpltm.tickets.load(path, model=MyNet)"
        )

    @cached_property
    def identity(self) -> str:
        """Digest of its layout, and of its outputs, so of its weights and of what it computes."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return what artifacts say of it, beside text, features and classes: no code, and no weights."""
        assert self.outputs is not None
        return {
            "source_sha256": self.source_sha256,
            "record": list(self.record_shape),
            "tables": list(self.tables),
            **({} if self.labels is None else {"labels": [self.labels.dtype, list(self.labels.shape)]}),
            "form": self.form,
            **({"parts": [[*astuple(part), False] for part in self.parts]} if self.parts else {}),
            "parameters": [[name, list(shape)] for name, shape in self.parameter_shapes.items()],
            "buffers": [[name, list(buffer.shape), buffer.dtype] for name, buffer in self.buffers.items()],
            "frozen": list(self.frozen),
            "prunable": list(self.prunable),
            "start_provenance": self.start_provenance,
            "outputs": [list(self.outputs.shape), content_id({"outputs": self.outputs.numpy()})],
        }

    @classmethod
    def from_json(cls, where: str, document: Mapping[str, Any], body: Any) -> Self:
        """Return the network, without code and outputs, that ``document`` (called ``where``) states by ``model``,
        ``features`` and ``classes``, and ``body``, a result of ``to_json``; ArtifactError if it is none."""
        try:
            size, digest = body["outputs"]
            records, width = _shape(size)
            layout = cls(
                text=_name(document["model"]),
                features=_count(document["features"], MAX_FEATURES),
                classes=_count(document["classes"], least=0),
                record_shape=_shape(body["record"]),
                tables=_shape(body["tables"]),
                labels=_labels(*body["labels"]) if "labels" in body else None,
                parts=tuple(_part(*part) for part in body.get("parts", ())),
                form=_among(get_args(Form), body["form"]),
                parameter_shapes=_by_name(_shape, body["parameters"]),
                buffers=_by_name(_buffer, body["buffers"]),
                frozen=tuple(map(_name, body["frozen"])),
                prunable=tuple(map(_name, body["prunable"])),
                outputs=torch.zeros(_need(records, records == RECORDS), _count(width, MOST_OUTPUTS)),
                start_provenance=_among(get_args(StartProvenance), body["start_provenance"]),
                source_sha256=None if body["source_sha256"] is None else _digest(body["source_sha256"]),
            )
            layout.check("the network")
            _need(_digest(digest), layout.to_json().keys() == body.keys())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = str(error) if isinstance(error, InputError) else "not the layout of a network"
            raise ArtifactError(f"{where}: own: {why}") from None
        return layout

    @property
    def output_shape(self) -> tuple[int, int]:
        """Shape of the outputs that go with it."""
        assert self.outputs is not None
        return RECORDS, self.outputs.shape[1]

    def with_outputs(self, where: str, body: Mapping[str, Any], outputs: Tensor) -> Self:
        """Return the same with the outputs that lie beside ``body``; ArtifactError if they are others."""
        if body["outputs"][1] != content_id({"outputs": outputs.numpy()}):
            raise ArtifactError(f"{where}: the outputs on made-up records are not the network's; damaged or changed")
        return replace(self, outputs=outputs)

    def check(self, where: str) -> None:
        """Raise InputError for a layout that no module has, or that is too large."""
        shapes = self.parameter_shapes
        names = [part.name for part in self.parts]
        sizes = [math.prod(self.record_shape), *([sum(part.size for part in self.parts)] if self.parts else [])]
        weights = self.parameters + sum(math.prod(buffer.shape) for buffer in self.buffers.values())
        trained = shapes.keys() - {*self.frozen}
        for wrong, what in (
            ((self.classes == 0) != (self.labels is not None), "classes, though its labels are no class numbers"),
            ({*sizes} != {self.features}, f"records whose shape, or parts, are not their {self.features} values"),
            (len({*names}) < len(names) or not all(map(str.isidentifier, names)), "parts with no name, or one twice"),
            (len(shapes) + len(self.buffers) > MAX_TENSORS, f"more than {MAX_TENSORS:,} tensors"),
            (shapes.keys() & self.buffers.keys(), "a name twice"),
            (weights > MAX_WEIGHTS, f"{weights:,} weights, more than the {MAX_WEIGHTS:,} that are taken"),
            (not trained or not {*self.frozen} <= shapes.keys(), "nothing but frozen parameters, or unknown ones"),
            (not {*self.prunable} <= trained, "prunable weights that are unknown, or frozen"),
            (any(len(shapes.get(name, ())) < 2 for name in self.prunable), "prunable weights of one dimension"),
        ):
            if wrong:
                raise InputError(f"{where} has {what}")
        with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
            if list(dict(Holder(self, "meta").named_parameters())) == list(shapes):
                return
        raise InputError(f"{where} has names of parameters that no module has, or in an order that none has")


def _need(value: T, fits: bool) -> T:
    if not fits:
        raise ValueError(value)
    return value


def _name(value: Any) -> str:
    return _need(value, isinstance(value, str) and value.isprintable() and 1 <= len(value) <= MAX_NAME_LENGTH)


def _count(value: Any, most: int = MAX_WIDTH, least: int = 1) -> int:
    return _need(value, type(value) is int and least <= value <= most)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(_count(size, 2**31) for size in _need(value, isinstance(value, list) and len(value) <= 16))


def _digest(value: Any) -> str:
    return _need(value, isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None)


def _among(choices: Collection[str], value: Any) -> Any:
    return _need(value, isinstance(value, str) and value in choices)


def _labels(dtype: Any, shape: Any) -> LabelForm:
    return LabelForm(_among(("float32", "int64"), dtype), _shape(shape))


def _buffer(shape: Any, dtype: Any) -> Buffer:
    return Buffer(_shape(shape), _among(DTYPES, dtype))


def _part(name: Any, shape: Any, words: Any, dtype: Any, padded: Any) -> InputPart:
    _need(padded, padded is False)
    return InputPart(_name(name), _shape(shape), _count(words, MAX_WORDS, 0), _among(PART_DTYPES, dtype))


def _by_name(read: Callable[..., T], rows: Any) -> dict[str, T]:
    values = {_name(name): read(*facts) for name, *facts in rows}
    return _need(values, len(values) == len(rows))


class Holder(nn.Module):
    """Parameters and buffers of a network whose code is not at hand, zeros by their names; KeyError and the like for names
    that no module has."""

    layout: Layout

    def __init__(self, layout: Layout, device: str = "cpu") -> None:
        super().__init__()
        for name, shape in layout.parameter_shapes.items():
            value = nn.Parameter(torch.zeros(shape, device=device), requires_grad=name not in layout.frozen)
            module, last = self._place(name)
            module.register_parameter(last, value)
        for name, buffer in layout.buffers.items():
            module, last = self._place(name)
            module.register_buffer(last, torch.zeros(buffer.shape, dtype=getattr(torch, buffer.dtype), device=device))
        vars(self)["layout"] = layout  # whatever a layer is called

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
        del x
        raise self.layout.no_code("this network")
