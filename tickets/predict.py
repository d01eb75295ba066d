"""Predict by an exported network, for every record a class and the chance of each, or a number. dpltm is not needed.

    python predict.py new.csv predictions.csv [ID]

ID names a column that is written first, such as a record's number. Records that are no table come as ``.npy`` or as ``x``
in an ``.npz``. ``dpltm export`` writes this file beside a network. What the network cannot take has NaN.
"""

import csv
import importlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

Inputs = dict[str, np.ndarray]  # arrays by name
ROWS = 32  # records in the network at once, or in what stands in front of it: an image may take 20 MB there


def network(folder: Path) -> Callable[[Inputs], np.ndarray]:
    """Return the network in a folder: a function of arrays by their names, to ``(n, classes)``, or ``(n,)`` numbers."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ValueError(f"needs ONNX Runtime; pip install onnxruntime ({error})") from None
    session = runtime.InferenceSession(str(folder / "model.onnx"))
    return lambda inputs: session.run(None, inputs)[0]


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


def no_formula(text: str) -> str:
    """Return a text for a cell of a table, behind an apostrophe where a spreadsheet would take it for a formula."""
    try:
        float(text)
    except ValueError:
        return f"'{text}" if len(text) > 1 and text[0] in "=+-@\t\r" else text
    return text


def main() -> None:
    """Write the predictions for a file of records."""
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python predict.py new.csv predictions.csv [ID]")
    source = Path(sys.argv[1])
    folder = Path(__file__).parent
    names = json.loads((folder / "about.json").read_text("utf-8")).get("classes")  # None of a number
    try:
        inputs = read(source, folder)
        first: list[tuple[str, list[str]]] = []
        if len(sys.argv) == 4:
            cells = importlib.import_module("encode").table(source)[0]
            if sys.argv[3] not in cells:
                raise ValueError(f"{source}: has no column {sys.argv[3]}; it has {', '.join(cells)}")
            first = [(sys.argv[3], cells[sys.argv[3]])]
        count = len(next(iter(inputs.values())))
        run = network(folder)
        parts = [
            run({name: values[at : at + ROWS] for name, values in inputs.items()}) for at in range(0, count, ROWS)
        ]
        outputs = np.concatenate(parts) if parts else np.zeros(0)
        with open(sys.argv[2], "x", newline="", encoding="utf-8") as stream:
            rows = csv.writer(stream, lineterminator="\n")
            heads = ["prediction"] if names is None else ["label", *(f"p {name}" for name in names)]
            rows.writerow([*(no_formula(name) for name, _ in first), *heads])
            for place, output in enumerate(outputs):
                written = [no_formula(cells[place]) for _, cells in first]
                if names is not None:
                    written.append("" if np.isnan(output).any() else no_formula(names[int(output.argmax())]))
                rows.writerow([*written, *(f"{value:.9g}" for value in np.atleast_1d(output))])
    except (OSError, ValueError, KeyError, csv.Error) as error:
        sys.exit(f"predict.py: {error}")


if __name__ == "__main__":
    main()
