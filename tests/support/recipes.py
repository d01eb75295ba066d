"""Recipes that tests are made of, and how they are read."""

import tomllib
from pathlib import Path
from typing import Any

from dpltm.tickets.workbench import recipes as reader
from dpltm.tickets.workbench.recipes import Recipe

HEAD = """
[recipe]
title = "T"
seeds = 2
[train]
dataset = "digits"
subset = "0.5:1.0"
model = "mlp:4"
batch-size = 50
steps = 2
noise-multiplier = 1.0
"""

SETS = """
[tickets.a]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:4"
rounds = 2
iterations = 3
batch-size = 30
"""

DENSE = '[[arm]]\nname = "dense"\n'

RUN = """
run = { epsilon = 3.0, delta = 1e-4 }
generate = { dataset = "digits", subset = "0.0:0.5", provenance = "public", model = "mlp:4", rounds = 1, iterations = 3 }
select = { score = "additive" }
train = { dataset = "digits", subset = "0.5:1.0", steps = 3 }
"""
"""Of all three stages; the others here are of a sweep."""

DRAWN = '[[arm]]\nname = "drawn"\ntickets = "a"\nselect = { eps1 = 0.5, score = "additive" }\n'


def read_recipe(text: str, **options: Any) -> Recipe:
    """The recipe in a text."""
    return reader.read_recipe(tomllib.loads(text), Path("recipe.toml"), **options)
