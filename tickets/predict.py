"""Predict by an exported network: a class, and the chance of each class, for every record. dpltm is not needed.

    python predict.py new.csv predictions.csv [ID]

ID names a column that is written first, such as a record's number. Records that are no table come as ``.npy`` or as ``x``
in an ``.npz``. ``dpltm export`` writes this file beside a network. A record that the network cannot take has chances NaN.
"""

import csv
import importlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Inputs = dict[str, np.ndarray]  # arrays by name
ROWS = 32  # records in the network at once, or in what stands in front of it: an image may take 20 MB there


def network(folder: Path) -> Callable[[Inputs], np.ndarray]:
    """Return the network in a folder: a function of arrays by the names of its inputs, which gives ``(n, classes)``."""
    if (folder / "model.onnx").exists():
        session = importlib.import_module("onnxruntime").InferenceSession(str(folder / "model.onnx"))
        return lambda given: session.run(["probabilities"], given)[0]
    if (folder / "model.pt2").exists():
        torch = importlib.import_module("torch")
        model = torch.export.load(folder / "model.pt2").module()
        return lambda given: model({name: torch.from_numpy(value) for name, value in given.items()}).numpy()
    tensors, said = weights(folder / "model.safetensors"), json.loads((folder / "about.json").read_text("utf-8"))
    return lambda given: plain(given, said["columns"], said["steps"], tensors)


def weights(path: Path) -> Inputs:
    """Return the tensors of a safetensors file, all of them float32, by name."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:start])
    head.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[start:][slice(*one["data_offsets"])], "<f4").reshape(one["shape"]).astype(np.float64)
        for name, one in head.items()
    }


def plain(given: Inputs, columns: list[Any], steps: list[Any], tensors: Inputs) -> np.ndarray:
    """Compute the probabilities of records by the steps of ``about.json``."""
    x, valid = encoded(given, columns) if columns else records(given["records"])
    x = through(steps, x, tensors)
    powers = np.exp(x - x.max(1, keepdims=True))
    chances = powers / powers.sum(1, keepdims=True)
    return np.where(valid[:, None], chances, np.nan).astype(np.float32)


def records(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return records in a row each, numbers that are none as 0, and whether a record holds numbers alone."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    finite = np.isfinite(flat)
    return np.where(finite, flat, 0), np.logical_and.reduce(finite, axis=1)


def encoded(given: Inputs, columns: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of columns with a schema, ``(n, features)``, and whether each record fits it."""
    features, valid = [], []
    for column in columns:
        values, missing, other = given[column["name"]], column["missing"], column["other"]
        if column["kind"] in ("category", "hashed"):
            size = column["size"]
            places = [*range(size), *([-1] if missing else [])]
            features.append(values[:, None] == np.array(places))
            valid.append((values >= (0 if not missing else -1)) & (values < size) | (other & (values == -2)))
            continue
        low, high = column["bounds"]
        hole = np.isnan(values)
        inside = np.clip(np.where(hole, low, values), low, high) - low
        part = np.log1p(inside) / np.log1p(high - low) if column["log"] else inside / (high - low)
        features.append(part[:, None])
        if missing:
            features.append(hole[:, None])
        valid.append(~hole | missing)
    return np.concatenate(features, 1).astype(np.float64), np.logical_and.reduce(valid)


def through(steps: list[Any], x: np.ndarray, tensors: Inputs) -> np.ndarray:
    """Compute what some steps make of records, ``(n, values)``."""
    for step in steps:
        match step["op"]:
            case "scale":
                x = np.clip(x * step["multiplier"] + step["offset"], *step["range"])
            case "average":
                width = step["width"]
                padded = np.pad(x, ((0, 0), (0, -x.shape[1] % width)), constant_values=np.nan)
                x = np.nanmean(padded.reshape(len(x), -1, width), 2)
            case "centre":
                x = x - x.mean(1, keepdims=True)
            case "subtract":
                x = x - tensors[step["value"]]
            case "norm":
                x = x * (step["norm"] / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))
            case "fourier":
                norms = np.sqrt((x**2).sum(1, keepdims=True) + step["constant"] ** 2)
                phases = (x @ tensors[step["directions"]].T + tensors[step["offsets"]]) / norms
                x = np.concatenate([np.cos(phases), np.sin(phases)], 1)
            case "join":
                x = np.concatenate([through(part, x, tensors) for part in step["parts"]], 1)
            case "linear":
                x = x @ tensors[step["weight"]].T + (tensors[step["bias"]] if "bias" in step else 0)
            case "relu":
                x = np.maximum(x, 0)
            case "tanh":
                x = np.tanh(x)
    return x


def read(source: Path, folder: Path) -> Inputs:
    """Return the inputs of the network for the records in a file, arrays by name."""
    if (folder / "encode.py").exists():
        return {name: np.array(values) for name, values in importlib.import_module("encode").inputs(source).items()}
    (wanted,) = json.loads((folder / "about.json").read_text("utf-8"))["inputs"]
    values = np.load(source, allow_pickle=False)
    values = values["x"] if source.suffix.lower() == ".npz" else values
    if values.size != len(values) * math.prod(wanted["shape"]):
        raise ValueError(f"{source}: has records of shape {values.shape[1:]}, and the network takes {wanted['shape']}")
    return {"records": values.reshape(len(values), *wanted["shape"]).astype(wanted["dtype"])}


def main() -> None:
    """Write the predictions for a file of records."""
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python predict.py new.csv predictions.csv [ID]")
    source, folder = Path(sys.argv[1]), Path(__file__).parent
    names = json.loads((folder / "about.json").read_text("utf-8"))["classes"]
    try:
        given = read(source, folder)
        first: list[tuple[str, list[str]]] = []
        if len(sys.argv) == 4:
            cells = importlib.import_module("encode").table(source)[0]
            if sys.argv[3] not in cells:
                raise ValueError(f"{source}: has no column {sys.argv[3]}; it has {', '.join(cells)}")
            first = [(sys.argv[3], cells[sys.argv[3]])]
        count = len(next(iter(given.values())))
        run = network(folder)
        parts = [run({name: values[at : at + ROWS] for name, values in given.items()}) for at in range(0, count, ROWS)]
        chances = np.concatenate([*parts, np.zeros((0, len(names)))])
        with open(sys.argv[2], "x", newline="", encoding="utf-8") as stream:
            rows = csv.writer(stream, lineterminator="\n")
            rows.writerow([*(name for name, _ in first), "label", *(f"p {name}" for name in names)])
            for place, each in enumerate(chances):
                label = "" if np.isnan(each).any() else names[int(each.argmax())]
                rows.writerow([*(cells[place] for _, cells in first), label, *(f"{chance:.9g}" for chance in each)])
    except (OSError, ValueError, KeyError, csv.Error) as error:
        sys.exit(f"predict.py: {error}")


if __name__ == "__main__":
    main()
