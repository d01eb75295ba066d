"""A made table as hospitals have them: ages, dates, codes, words, holes, several rows a patient, and a rare outcome.

    python examples/hospital_table.py FOLDER [ROWS]

writes ``visits.csv``, ``others.csv`` (a fifth as many rows, of other patients), ``new.csv`` (columns in another order, and
no outcome) and ``known.toml``, the schema of all. Nobody in it lives.
"""

from __future__ import annotations

import csv
import datetime
import math
import sys
from pathlib import Path

import numpy as np

CODES = ("I10", "E11", "J44", "N18", "C50", "F32", "M54", "K21")
WEIGHTS = (0.3, 0.25, 0.6, 0.7, 0.4, -0.2, -0.6, -0.5)
"""Of codes, in the logit of the outcome."""

SCHEMA = f"""\
[column.patient]
kind = "ignored"

[column.age]
kind = "number"
bounds = [0, 110]
missing = true

[column.sex]
kind = "category"
values = ["f", "m"]
missing = true

[column.admitted]
kind = "date"
bounds = [2020-01-01, 2024-12-31]

[column.code]
kind = "category"
values = {list(CODES)}

[column.creatinine]
kind = "number"
bounds = [20, 2000]
log = true
missing = true

[column.note]
kind = "hashed"
buckets = 16

[column.returned]
kind = "label"
classes = ["no", "yes"]
"""

HEAD = ("patient", "age", "sex", "admitted", "code", "creatinine", "note", "returned")
SHARE = 0.17
"""Of rows with the outcome, on average."""

STRENGTH = 1.15
"""Of what the columns say of it: logistic regression without privacy has an AUC of 0.717 on others.csv."""


def rows(count: int, seed: int, first: int = 0) -> list[tuple[str, ...]]:
    """Return rows of patients, numbered from ``first``, who have 1 to 6 each."""
    draw = np.random.default_rng(seed)
    made: list[tuple[str, ...]] = []
    patient = first
    while len(made) < count:
        age = float(np.clip(draw.normal(62, 17), 0, 108))
        sex, frail = draw.choice(["f", "m"]), draw.normal()
        for _ in range(int(draw.integers(1, 7))):
            code = int(draw.choice(len(CODES), p=np.array([5, 4, 3, 2, 1, 2, 2, 1]) / 20))
            creatinine = float(np.exp(draw.normal(4.4 + 0.25 * frail, 0.4)))
            day = datetime.date(2020, 1, 1) + datetime.timedelta(days=int(draw.integers(0, 1820)))
            told = 0.03 * (age - 62) + WEIGHTS[code] + 0.9 * (math.log(creatinine) - 4.4) + 0.2 * frail
            told += 0.15 * (sex == "m") + 0.2 * (day.month in (12, 1, 2))
            logit = STRENGTH * told + math.log(SHARE / (1 - SHARE)) - 0.68
            returned = draw.random() < 1 / (1 + math.exp(-logit))
            made.append(
                (
                    f"p{patient:06d}",
                    "" if draw.random() < 0.04 else f"{age:.0f}",
                    "" if draw.random() < 0.02 else str(sex),
                    day.isoformat(),
                    CODES[code],
                    "" if draw.random() < 0.15 else f"{creatinine:.0f}",
                    str(draw.choice(["fall", "pain", "dyspnoea", "planned", "fever", "dizzy"])),
                    "yes" if returned else "no",
                )
            )
        patient += 1
    return made[:count]


def write(folder: Path, count: int = 20_000, seed: int = 0) -> None:
    """Write the tables and their schema."""
    for name, number, shift in (("visits.csv", count, 0), ("others.csv", count // 5, 1)):
        with (folder / name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows([HEAD, *rows(number, seed + shift, shift * 10**5)])
    order = ("note", "patient", "creatinine", "age", "code", "sex", "admitted")
    with (folder / "new.csv").open("w", newline="", encoding="utf-8") as stream:
        new = [dict(zip(HEAD, row, strict=True)) for row in rows(count // 20, seed + 2, 2 * 10**5)]
        csv.writer(stream, lineterminator="\n").writerows([order, *([row[name] for name in order] for row in new)])
    (folder / "known.toml").write_text(SCHEMA.replace("'", '"'), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
