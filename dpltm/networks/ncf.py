"""``ncf``: neural collaborative filtering, the network for MovieLens of Bu, Dong, Long, Su (2020).

As in the MovieLens tutorial of TensorFlow Privacy that they took it from (after He et al. 2017): vectors of 5 numbers for
user and item, multiplied number by number (generalised matrix factorisation); vectors of 10 numbers for both beside them;
and one linear layer from these 25 numbers to five classes, the stars. On 6,040 users and 3,952 items that is 150,010
parameters. ``ncf:6040x3952:8,16`` has vectors of 8 and of 16 numbers.

A record holds the positions of its user and its item. Several records in a row, as a user gives them, go through one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dpltm.errors import InputError
from dpltm.networks.kind import MAX_LAYER_WIDTH, LayerSpec, NetworkKind, layer

WIDTHS = (5, 10)
"""Numbers in the vectors that are multiplied, and in those that stand beside them, where the name does not say."""

MAX_TABLE = 1_000_000
"""Most users, or items, as in files of ratings. Networks named in files are built before weights are seen: for memory."""

OF_USERS = ("factors.user_product.weight", "factors.user_beside.weight")
"""The parameters that have a row for each user."""

_SIZE = "([1-9][0-9]{0,7})"
_WIDTH = "([1-9][0-9]{0,3})"


def resolve(text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
    """``ncf`` with the sizes of the tables: ``ncf:USERSxITEMS``. Arguments as :func:`as_given`.

    Raises:
        InputError: records that are no ratings.
    """
    del shape
    if len(tables) != 2:
        raise InputError(
            f"`model` {text}: takes ratings, positions of users and items in two tables, such as those of movielens"
        )
    return f"{text}:{tables[0]}x{tables[1]}"


def tables(text: str) -> tuple[int, ...]:
    """Numbers of users and items."""
    return _parts(text)[0]


def widths(text: str) -> tuple[int, int]:
    """Numbers in the vectors that are multiplied, and in those that stand beside them."""
    return _parts(text)[1]


def _parts(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    parts = re.fullmatch(f"ncf:{_SIZE}x{_SIZE}(?::{_WIDTH},{_WIDTH})?", text)
    users, items, product, beside = (0, 0, 0, 0) if parts is None else (int(part or 0) for part in parts.groups())
    if parts is None or max(users, items) > MAX_TABLE or max(product, beside) > MAX_LAYER_WIDTH:
        raise InputError(
            f"`model`: {text!r:.80}: say the numbers of users and items, up to {MAX_TABLE:,}, and the widths of both"
            f" kinds of vectors, up to {MAX_LAYER_WIDTH}, if they are others than the usual ones, as in ncf:6040x3952:5,10"
        )
    return (users, items), (product, beside) if product else WIDTHS


def check(text: str, features: int) -> None:
    """Raises InputError for sizes that are none, or records that are no pairs."""
    _parts(text)
    if features != 2:
        raise InputError(f"`model`: {text}: takes a user and an item, but the records have {features} features")


def renamed(text: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of the network on the same tables with these parameters."""
    new_widths = tuple(shapes[name][1] for name in OF_USERS)
    name = "ncf:" + "x".join(str(size) for size in tables(text))
    return name if new_widths == WIDTHS else f"{name}:{new_widths[0]},{new_widths[1]}"


def shapes(text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order. Arguments as :func:`dpltm.networks.mlp.shapes`."""
    del features
    (users, items), (product, beside) = _parts(text)
    return {
        "factors.user_product.weight": (users, product),
        "factors.item_product.weight": (items, product),
        "factors.user_beside.weight": (users, beside),
        "factors.item_beside.weight": (items, beside),
        "fc1.weight": (classes, product + 2 * beside),
        "fc1.bias": (classes,),
    }


def layers(text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
    """The layers, in order: ``(..., 2)`` positions of user and item to ``(..., classes)``.

    Arguments as :func:`dpltm.networks.mlp.shapes`.
    """
    del features
    (users, items), (product, beside) = _parts(text)
    return (
        layer("factors", "Factors", users, items, product, beside),
        layer("fc1", "Linear", product + 2 * beside, classes),
    )


NCF = NetworkKind(
    "ncf",
    "Neural collaborative filtering: vectors of user and item, multiplied and beside each other, one layer.",
    "Bu, Dong, Long, Su 2020, after He et al. 2017",
    "ncf",
    ("ratings",),
    check,
    shapes,
    layers,
    renamed,
    resolve=resolve,
    tables=tables,
    no_tanh="ncf has no ReLU to stand in for",
    user_parameters=OF_USERS,
)
