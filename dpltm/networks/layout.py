"""What artifacts state of a network of the user's own, as JSON. It is data: nothing in it is ever followed to code.

pydantic takes a tenth of a second to import: only what reads such an artifact imports this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field

from dpltm.networks import MAX_NAME_LENGTH
from dpltm.networks.kind import MAX_FEATURES, MAX_WIDTH
from dpltm.networks.own import DTYPES, MOST_OUTPUTS, RECORDS, Form, StartProvenance
from dpltm.records.input_parts import DTYPES as PART_DTYPES
from dpltm.records.input_parts import MAX_WORDS, InputPart
from dpltm.records.split import LabelForm

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
Shape = Annotated[tuple[Annotated[int, Field(ge=1, le=2**31)], ...], Field(max_length=16)]
Words = Annotated[int, Field(ge=0, le=MAX_WORDS)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Dtype = Annotated[str, Field(pattern=f"^({'|'.join(DTYPES)})$")]
PartDtype = Annotated[str, Field(pattern=f"^({'|'.join(PART_DTYPES)})$")]
Outputs = tuple[Annotated[int, Field(ge=RECORDS, le=RECORDS)], Annotated[int, Field(ge=1, le=MOST_OUTPUTS)]]


class Statement(BaseModel, extra="forbid"):
    """Fields of ``OwnNetwork``, by the keys of docs/formats.md."""

    text: Name = Field(alias="model")
    features: int = Field(ge=1, le=MAX_FEATURES)
    classes: int = Field(ge=0, le=MAX_WIDTH)
    source_sha256: Digest | None
    record_shape: Shape = Field(alias="record")
    tables: Shape
    labels: tuple[Literal["float32", "int64"], Shape] | None = None
    form: Form
    parts: tuple[tuple[Name, Shape, Words, PartDtype, Literal[False]], ...] = Field((), min_length=1)
    parameter_shapes: tuple[tuple[Name, Shape], ...] = Field(alias="parameters")
    buffers: tuple[tuple[Name, Shape, Dtype], ...]
    frozen: tuple[Name, ...]
    prunable: tuple[Name, ...]
    start_provenance: StartProvenance
    outputs: tuple[Outputs, Digest]


def read(document: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that ``body``, and ``document`` by ``model``, ``features`` and ``classes``, state; or ValueError."""
    text = json.dumps({**body, **{name: document[name] for name in ("model", "features", "classes")}})
    stated = Statement.model_validate_json(text, strict=True)
    return {
        **dict(stated),
        "labels": stated.labels and LabelForm(*stated.labels),
        "parts": tuple(InputPart(*part[:4]) for part in stated.parts),
        "parameter_shapes": _by_name(stated.parameter_shapes),
        "buffers": _by_name((name, (shape, dtype)) for name, shape, dtype in stated.buffers),
        "outputs": torch.zeros(stated.outputs[0]),
    }


def _by_name(rows: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    rows = list(rows)
    values = dict(rows)
    if len(values) < len(rows) or not all(map(str.isprintable, values)):
        raise ValueError(rows)
    return values
