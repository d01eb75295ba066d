"""Runs for use without dpltm: a folder with the trained network, its scaling, encoding and features, and a program.

One ONNX graph holds all of it, and ``predict.py`` beside it predicts. The graph is compared with dpltm on made-up records
before the folder is there.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.errors import DpltmError, InputError, first_line, naming
from dpltm.networks import build
from dpltm.networks.evaluation import DIVERGED, has_diverged
from dpltm.networks.masks import network_id
from dpltm.networks.state import evaluating, put, weights_of
from dpltm.privacy.account import Account
from dpltm.privacy.describe import guarantee
from dpltm.privacy.entry import Lineage
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.progress import SILENT, Progress
from dpltm.records import encode
from dpltm.records.input_parts import split
from dpltm.records.made_up import fractions
from dpltm.records.scaling import affine, unit_range
from dpltm.records.schema import NO_SCHEMA, Column, Schema
from dpltm.records.tables import Table, read_by_schema
from dpltm.reports.statement import guarantee_of_run
from dpltm.reports.wording import render
from dpltm.tickets.files import as_path, check_writable, new_folder, write_json
from dpltm.tickets.model_card import sources
from dpltm.training.artifacts import Run
from dpltm.verbs.evaluate import predict

MADE_UP = 96
"""Made-up records that the graph is compared on, at least."""

AGREE, ROUNDING = 1e-5, 2.0**-20
"""Largest difference of a probability; and that over the largest output, where float32 itself is coarser."""

_INNER = "dpltm:"  # beginning of names inside the file, which no column may have

_HOLE, _OTHER = -1, -2  # of a category


@dataclass(frozen=True)
class Exported:
    """A run that left: its folder, and what that says of itself (``about.json``).

    ``difference`` is the largest from dpltm's, of a probability or a prediction over its range, on made-up ``records``.
    """

    path: Path
    about: Mapping[str, Any]
    difference: float
    records: int
    notes: tuple[str, ...] = ()


def export_run(run: Run, path: str | Path, *, yes: bool = False, progress: Progress = SILENT) -> Exported:
    """Write a trained network for use without dpltm: with its scaling, encoding and features, and what it cost.

    Args:
        run: with its network; of a network of your own, with its code at hand (``load(path, model=MyNet)``).
        path: folder to write, which does not exist yet.
        yes: hand on masks that were made from private records with no mechanism, knowing what they may reveal.

    Raises:
        DpltmError: what no epsilon bounds; a network or features that ONNX cannot hold; or another answer than dpltm's
            on a made-up record. Nothing is written then.

    Guarantees:
        Nothing but the run is looked at. What leaves is what its certified figure covers, and public inputs.
    """
    with naming(out="path"):
        if not isinstance(run, Run):
            raise InputError("run", run, "a run", "give what dpltm.train returns, or dpltm.tickets.load(path)")
        return exported(run, as_path(path), consent=yes, progress=progress)


def exported(run: Run, folder: Path, *, consent: bool, progress: Progress) -> Exported:
    """Do what :func:`export_run` says."""
    check_writable(folder)
    notes = check_run_shareable(run, consent)
    about = _about(run)
    with new_folder(folder) as staging:
        progress.say("writing model.onnx")
        _write_network(run, staging / "model.onnx", about)
        write_json(staging / "about.json", about)
        (staging / "predict.py").write_bytes(Path(encode.__file__).read_bytes())
        progress.say("comparing it with dpltm on made-up records")
        difference, records = _compared(run, staging, about)
        readme = render("export.md.jinja", {"about": about, "guarantee": guarantee(about["certified"])})
        (staging / "README.md").write_text(readme, encoding="utf-8")
    return Exported(folder, about, difference, records, notes)


def _unprotected(lineage: Lineage) -> bool:
    """Tell whether something was released with no mechanism, or with one that adds no noise."""
    bare = (sgd.noise_multiplier == 0 for entry in lineage.entries for sgd in entry.of(NoisySgd))
    return any(entry.of(Unprotected) for entry in lineage.entries) or any(bare)


def check_run_shareable(run: Run, consent: bool) -> tuple[str, ...]:
    """Refuse a network trained on private records with no mechanism, and masks made so without consent; return notes."""
    if "scheme" in run.config:
        raise InputError(f"{run.label}: made by dpltm latent train; its model.safetensors holds its network")
    run.spec.check_code(run.label)
    if has_diverged(run.model, run.spec):
        raise InputError(f"{run.label}: {DIVERGED}")
    entry = run.entry
    training = replace(run.lineage, entries=() if entry is None else (entry,))
    if _unprotected(training):
        raise DpltmError(
            f"{run.label}: holds a network trained on {' and '.join(sources(training))} with no mechanism, which is never"
            " handed on"
        )
    if _unprotected(run.lineage) and not consent:
        raise DpltmError(
            f"{run.label}: depends on a release from {' and '.join(sources(run.lineage))} with no mechanism, such as the"
            " masks of its tickets, and no epsilon bounds what that may reveal; if you mean to hand it on all the same, add"
            " `yes`"
        )
    ids = {entry.id for entry in run.lineage.entries}
    if run.schema is not None and not {entry.id for entry in run.schema.lineage.entries} <= ids:
        raise DpltmError(
            f"{run.label}: bounds or values of its schema were found by a release that its lineage lacks; one was changed"
        )
    return ("no epsilon bounds what its masks may reveal",) if _unprotected(run.lineage) else ()


# --- what a folder says of itself --------------------------------------------------------------------------------------


def _about(run: Run) -> dict[str, Any]:
    """Return ``about.json``: whence, what it cost, inputs and classes; InputError for a run that ONNX cannot hold."""
    feature_map, entry, schema = run.feature_map, run.entry, run.schema
    output = "probabilities" if run.target is None else "prediction"
    if run.spec.labels is not None:
        raise InputError(
            f"{run.label}: an exported network gives probabilities of classes, and this one was trained on"
            f" {run.spec.labels}; in Python, take the `model` of dpltm.tickets.load"
        )
    for kind, _ in () if feature_map is None else feature_map.base.parts:
        if kind.by_fourier:
            raise InputError(
                f"{run.label}: {kind.name} features are computed by Fourier transforms, which ONNX does not hold; predict"
                " with dpltm, or train on other features"
            )
    inputs = [_records(run)] if schema is None else [_input(column) for column in _features(schema)]
    if any(stated["name"] == output or stated["name"].startswith(_INNER) for stated in inputs):
        raise InputError(
            f"{run.label}: an exported network has names of its own, {output} and {_INNER}...; rename that column"
        )
    tabular = schema is not None or (run.columns is not None and not run.spec.tables)
    names = map(str, range(run.spec.classes)) if schema is None else schema.class_names
    return {
        "format": "dpltm-export", "schema": 1, "form": "onnx",
        "run": None if entry is None else entry.id,
        "weights": network_id(run.model, run.mask),
        "network": run.spec.text,
        "features": None if feature_map is None else feature_map.text,
        "certified": guarantee_of_run(run.config, Account.alone(run.lineage)).to_json()["certified"],
        **({"classes": list(names)} if run.target is None else {"target": list(run.target)}),
        "inputs": inputs,
        **({"table": _table(schema)} if tabular else {}),
        "output": {"name": output, "dtype": "float32", "shape": [] if run.target else [run.spec.classes]},
        "written_by": f"dpltm {version('dpltm')}",
    }  # fmt: skip


def _features(schema: Schema) -> list[Column]:
    return [column for column in schema.columns if column.features]


def _records(run: Run) -> dict[str, Any]:
    """Return the one input of a network whose records are no rows of a schema."""
    spec = run.spec
    shape = spec.record_shape if run.feature_map is None else run.feature_map.shape
    stated: dict[str, Any] = {"name": "records", "dtype": "int64" if spec.tables else "float64", "shape": list(shape)}
    if run.columns is not None:
        stated["columns"] = list(run.columns)
    if spec.parts:
        stated["parts"] = [[part.name, list(part.shape), part.words] for part in spec.parts]
    return stated


def _input(column: Column) -> dict[str, Any]:
    """Return what a column of a schema is as an input, and what ``predict.py`` knows of its cells."""
    dtype, holds, hole = {
        "number": ("float64", "a number", "NaN"),
        "date": ("float64", "days, 1 for 0001-01-01", "NaN"),
        "category": ("string", "one of its values", "a text for holes"),
        "hashed": ("int64", f"a bucket, 0 to {column.buckets - 1}", f"{_HOLE}"),
    }[column.kind]
    stated = {name: getattr(column, name) for name in ("name", "kind", "missing", "other", "buckets", "decimal")}
    values = [list(spellings) for spellings in column.values]
    return {
        **stated, "dtype": dtype, "shape": [], "holds": holds, "hole": hole if column.missing else None, "values": values
    }  # fmt: skip


def _table(schema: Schema | None) -> dict[str, Any]:
    """Return how the rows of a table are written."""
    marks = schema or NO_SCHEMA
    return {
        "skip": marks.skip, "separator": marks.separator, "encoding": marks.encoding,
        "names": None if marks.header else [column.name for column in marks.columns],
        "missing": [] if schema is None else list(schema.missing),
    }  # fmt: skip


# --- the whole network -------------------------------------------------------------------------------------------------


class _Served(nn.Module):
    """Inputs by name to probabilities ``(n, classes)``, or predictions ``(n,)``; NaN for a record that does not fit."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._encoding = None if run.schema is None else _Encoding(_features(run.schema))
        self._target, self._tables = run.target, run.spec.tables
        self._map, bounds = run.feature_map, (run.feature_map or run).bounds
        self._shape = run.spec.record_shape if run.feature_map is None else run.feature_map.shape
        parts = [(part.size, part.bounds(bounds)) for part in run.spec.parts]
        self._parts = parts or [(math.prod(self._shape), bounds)]
        self._model = build(run.spec)
        put(self._model, weights_of(run.model))

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        if self._encoding is not None:
            x, valid = self._encoding(inputs)
        else:
            x = inputs["records"].flatten(1)
            valid = torch.ones_like(x[:, 0], dtype=torch.bool)
            if self._tables:
                sizes = torch.tensor(self._tables).repeat(x.shape[1])[: x.shape[1]]
                x = torch.where((x >= 0) & (x < sizes), x, 0).float()
            else:
                finite = x.abs() <= torch.finfo(torch.float64).max
                x, valid = torch.where(finite, x, 0.0), finite.all(1)
                parts = x.split([size for size, _ in self._parts], 1)
                x = torch.cat([_scaled(part, bounds) for part, (_, bounds) in zip(parts, self._parts, strict=True)], 1)
        if self._map is not None:
            x = self._map.of_scaled(x.unflatten(1, self._shape))
        chances = torch.softmax(self._model(x), 1)
        if self._target is None:
            return torch.where(valid[:, None], chances, torch.nan)
        low, high = self._target
        return torch.where(valid, (low + (high - low) * chances[:, 1].double()).float(), torch.nan)


def _scaled(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    multiplier, offset = affine(bounds)
    return (x * multiplier + offset).clamp(*unit_range(bounds)).float()


class _Encoding(nn.Module):
    """Columns of a schema as features, ``(n, features)`` float32, and whether each record fits it."""

    def __init__(self, columns: list[Column]) -> None:
        super().__init__()
        numbers = [column for column in columns if column.kind in ("number", "date")]
        places = [column for column in columns if column not in numbers]
        sizes = [len(column.values) or column.buckets for column in places]
        hot = [  # the column and the value that a feature is 1 for
            (at, place)
            for at, column in enumerate(places)
            for place in (*range(sizes[at]), *((_HOLE,) if column.missing else ()))
        ]
        # all numbers side by side, and all places: a table of a thousand columns takes as many steps as one of two
        self._numbers, self._places = ([column.name for column in some] for some in (numbers, places))
        self._low, self._high = torch.tensor([column.bounds for column in numbers], dtype=torch.float64).view(-1, 2).T
        self._log = torch.tensor([column.log for column in numbers])
        self._sizes = torch.tensor(sizes)
        self._owner, self._place = torch.tensor(hot, dtype=torch.int64).view(-1, 2).T
        self._may_miss = [torch.tensor([column.missing for column in some]) for some in (numbers, places)]
        self._other = torch.tensor([column.other for column in places])
        owners = [*self._numbers, *(column.name if column.missing else "" for column in numbers)]
        owners += [self._places[at] for at, _ in hot]
        at = {column.name: place for place, column in enumerate(columns)}  # features as the columns come
        kept = [feature for feature, name in enumerate(owners) if name]
        self._order = torch.tensor(sorted(kept, key=lambda feature: at[owners[feature]]))

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        parts, fits = [], []
        if self._numbers:
            values = torch.stack([inputs[name] for name in self._numbers], 1)
            hole, width = values.isnan(), self._high - self._low
            inside = torch.where(hole, self._low, values).maximum(self._low).minimum(self._high) - self._low
            share = torch.where(self._log, inside.log1p() / width.log1p(), inside / width)
            parts += [share.float(), hole.float()]
            fits.append(~hole | self._may_miss[0])
        if self._places:
            values = torch.stack([inputs[name] for name in self._places], 1)
            parts.append((values.index_select(1, self._owner) == self._place).float())
            fits.append((values >= 0) & (values < self._sizes))
            fits[-1] = fits[-1] | ((values == _HOLE) & self._may_miss[1]) | ((values == _OTHER) & self._other)
        return torch.cat(parts, 1).index_select(1, self._order), torch.cat(fits, 1).all(1)


# --- its file ------------------------------------------------------------------------------------------------------------


def _onnx_program(run: Run, about: Mapping[str, Any]) -> Any:
    """Return a network as torch writes it, categories as places; InputError for one that it cannot."""
    kinds = {"float64": torch.float64, "int64": torch.int64, "string": torch.int64}
    inputs = {
        stated["name"]: torch.zeros(2, *stated["shape"], dtype=kinds[stated["dtype"]]) for stated in about["inputs"]
    }
    batch = torch.export.Dim("batch", min=1)
    module = _Served(run).eval().requires_grad_(False)
    logging.disable(logging.CRITICAL)
    with evaluating(module), torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # of torch, which prints pages of a network that it cannot trace
        try:
            traced = torch.export.export(module, (inputs,), dynamic_shapes=({name: {0: batch} for name in inputs},))
            return torch.onnx.export(traced, (inputs,), dynamo=True, verbose=False)
        except Exception as error:  # of torch, or of the user's own code
            raise InputError(
                f"{run.label}: ONNX cannot hold {run.spec.text}: {first_line(error)}; its forward must take the same steps"
                " whatever records hold"
            ) from error
        finally:
            logging.disable(logging.NOTSET)


def _write_network(run: Run, path: Path, about: Mapping[str, Any]) -> None:
    """Write a network as ONNX, without torch's notes on where its own source lies."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401

        importlib.import_module("onnxruntime")
        passes = importlib.import_module("onnx_ir.passes.common")  # of what onnxscript stands on
    except ImportError as error:
        raise InputError(f"ONNX needs the package {error.name}; pip install 'dpltm[onnx]'") from None
    program = _onnx_program(run, about)
    model, graph = program.model, program.model.graph
    passes.ClearMetadataAndDocStringPass()(model)
    values = [*graph.inputs, *(value for node in graph.all_nodes() for value in node.outputs)]
    for number, value in enumerate([*values, *graph.initializers.values()]):
        value.name = f"{_INNER}{number}"
    graph.outputs[0].name = about["output"]["name"]
    for place, (stated, value) in enumerate(zip(about["inputs"], list(graph.inputs), strict=True)):
        if stated["dtype"] == "string":
            graph.inputs[place] = _texts(graph, value, stated["values"], about["table"]["missing"])
            model.opset_imports["ai.onnx.ml"] = 2
        graph.inputs[place].name = stated["name"]
    model.metadata_props["dpltm"] = json.dumps(about)
    program.save(str(path))


def _texts(graph: Any, value: Any, values: list[list[str]], missing: list[str]) -> Any:
    """Put an input of texts in front of one of places."""
    ir = importlib.import_module("onnx_ir")
    places = {spelling: place for place, spellings in enumerate(values) for spelling in spellings}
    places |= dict.fromkeys(missing, _HOLE)
    texts = ir.Value(type=ir.TensorType(ir.DataType.STRING), shape=value.shape)
    attributes = [
        ir.AttrStrings("keys_strings", list(places)),
        ir.AttrInt64s("values_int64s", list(places.values())),
        ir.AttrInt64("default_int64", _OTHER),
    ]
    node = ir.Node("ai.onnx.ml", "LabelEncoder", inputs=[texts], attributes=attributes)
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = value.name, value.type, value.shape
    ir.convenience.replace_all_uses_with(value, node.outputs[0])
    graph.insert_before(graph[0], node)
    value.name = None
    return texts


# --- compared -----------------------------------------------------------------------------------------------------------


def _compared(run: Run, folder: Path, about: dict[str, Any]) -> tuple[float, int]:
    """Return the largest difference from dpltm's answers on made-up records, and their number; DpltmError if too large."""
    output = about["output"]["name"]
    if run.schema is None:
        x = _made_up(run)
        inputs = {"records": x.astype(about["inputs"][0]["dtype"])}
    else:
        table = folder / "made-up.csv"
        _write_made_up(table, run.schema)
        x = read_by_schema(Table(table, run.schema), labelled=False).x
        inputs = {name: np.array(values) for name, values in encode.inputs(table, about).items()}
        table.unlink()
    expected = predict(run, x)
    wanted = expected.values if run.target else expected.probabilities
    span = 1.0 if run.target is None else run.target[1] - run.target[0]
    difference = float(np.abs(encode.network(folder)(inputs) - wanted).max()) / span
    allowed = max(AGREE, ROUNDING * float(np.abs(expected.outputs).max()))
    if not difference <= allowed:  # NaN as well
        raise DpltmError(
            f"{run.label}: ONNX gives {run.spec.text} other {output} than dpltm, by {difference:.2g} on made-up records;"
            " nothing was written"
        )
    return difference, len(x)


def _made_up(run: Run) -> np.ndarray:
    """Return made-up records ``(MADE_UP, *shape)``, some values of which are outside."""
    spec, feature_map = run.spec, run.feature_map
    shape = spec.record_shape if feature_map is None else feature_map.shape
    bounds = (feature_map or run).bounds
    parts = fractions(MADE_UP, math.prod(shape)).numpy()
    if spec.tables:
        sizes = np.resize(np.array(spec.tables), parts.shape[1])
        return (np.floor(parts * (sizes + 2)) - 1).reshape(MADE_UP, *shape).astype(np.float32)
    if not spec.parts:
        return _spread(parts, bounds).reshape(MADE_UP, *shape)
    values = [
        (_spread(x, part.bounds(bounds)), part) for x, part in zip(split(parts, spec.parts), spec.parts, strict=True)
    ]
    return np.concatenate([np.round(x) if part.words else x for x, part in values], 1)


def _spread(parts: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Return values of a range, and some outside of it, for fractions."""
    low, high = bounds
    return np.asarray(low + (parts * 1.2 - 0.1) * (high - low))


def _write_made_up(path: Path, schema: Schema) -> None:
    """Write a table of made-up records that fit a schema: every value, holes, days and numbers that are outside."""
    columns = [column for column in schema.columns if column.kind != "label" or not schema.header]
    count = max(MADE_UP, *(2 * sum(map(len, column.values)) for column in columns))  # a fifth of the cells are odd
    parts = fractions(count, len(columns)).numpy()
    table = [_cells(column, parts[:, at], schema, at % 5) for at, column in enumerate(columns)]
    with path.open("w", newline="", encoding=schema.encoding) as stream:
        rows = csv.writer(stream, lineterminator="\n", delimiter=schema.separator)
        if schema.header:
            rows.writerow([column.name for column in columns])
        rows.writerows(zip(*table, strict=True))


def _cells(column: Column, parts: np.ndarray, schema: Schema, first: int) -> list[str]:
    """Return made-up cells, as many as ``parts``; from the ``first`` on, every fifth is a hole, or what is none of it."""
    odd = [*(schema.missing if column.missing else ()), *(["none of them"] if column.other else [])]
    wide = _spread(parts, column.bounds).tolist()
    match column.kind:
        case "label" if column.is_target:
            plain = [f"{column.bounds[0]:g}"]
        case "number":
            plain = [repr(value).replace(".", column.decimal) for value in wide]
        case "date":
            plain = [date.fromordinal(min(max(round(day), 1), date.max.toordinal())).isoformat() for day in wide]
        case "category" | "label":
            spellings = {spelling for values in column.values for spelling in values} - set(schema.missing)
            encodable = (spelling.encode(schema.encoding, "ignore").decode(schema.encoding) for spelling in spellings)
            plain = sorted(spellings & set(encodable))
        case _:
            plain = [f"word {part:.3f}" for part in parts]
    cells, strange = cycle(plain), cycle(odd)
    return [next(strange if odd and place % 5 == first else cells) for place in range(len(parts))]
