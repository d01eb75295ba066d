"""What the best of ten settings costs by a private search, beside ten releases: the table of privacy-model.md 5.7.

A try is DP-SGD with q = 4096/60000 and 234 steps, with the noise that costs it the stated epsilon alone; ten tries in the
mean, and scores that tell nothing, so that the figures are those of the search. Prints one JSON list, in half a minute.

    python benchmarks/private_search.py
"""

from __future__ import annotations

import json
from dataclasses import replace

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import NoisySgd, PrivateSearch
from dpltm.privacy.private_search import gamma_for

DELTA, TRIES = 1e-5, 10
TRAINING = NoisySgd(4096 / 60_000, 234, 1.0)
SILENT = 1e6
"""Noise of scores that tell nothing."""


def main() -> None:
    rows = []
    for each in (0.2, 1.0):
        training = calibrate_noise(each, DELTA, TRAINING)
        search = PrivateSearch((training,), SILENT, gamma_for(TRIES))
        plain = replace(training, steps=TRIES * training.steps)
        rows.append(
            {
                "each": each,
                "renyi": epsilon((search,), DELTA, "rdp"),
                "profiles": epsilon((search,), DELTA),
                "ten_releases": epsilon((plain,), DELTA),
            }
        )
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
