"""``embed``, ``ncf``, ``lstm``, ``gru`` and ``rnn``: networks of texts, of ratings, and of sequences.

``embed`` is the network for film reviews of Bu, Dong, Long, Su (2020): a table of 10,000 words with vectors of 16
numbers, their mean over all positions, then 16 units with ReLU. ``embed:10000:32,16`` has vectors of 32 numbers and 16
units, ``embed:10000:32`` no units in between. The vector of padding stays zero; in the paper it is trained as one more
word, which ``embed-pad`` does: most of a record's gradient, and of the norm that clipping leaves, then goes to padding.

``ncf`` is their network for MovieLens (after He et al. 2017): vectors of 5 numbers for user and item, multiplied number
by number, vectors of 10 numbers for both beside them, and one linear layer to five classes, the stars.
``ncf:6040x3952:8,16`` has vectors of 8 and of 16 numbers. A record holds the positions of its user and its item; several
in a row, as a user gives them, go through one by one.

``lstm``, ``gru`` and ``rnn`` are one recurrent layer, whose last state goes into a linear classifier. ``lstm:128x9``
takes 128 steps of 9 values, ``lstm:128x9:64`` with 64 units in place of 32; images go row by row. ``lstm:10000`` looks
words up in a table with vectors of 16 numbers, ``lstm:10000:32,64`` of 32, with 64 units. Records come flattened.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from dpltm.errors import InputError
from dpltm.networks.kind import MAX_LAYER_WIDTH, SIZE, WIDTH, LayerSpec, NetworkKind, Shapes, layer, named, stack

EMBED_WIDTHS, NCF_WIDTHS, UNITS, VECTOR = (16, 16), (5, 10), 32, 16
"""Default widths: of ``embed``, numbers in the vector of a word, and units behind their mean; of ``ncf``, numbers in
the vectors that are multiplied, and in those beside them; of recurrent networks, units, and numbers of a word."""

MAX_LAYERS = 100

MAX_TABLE = 1_000_000
"""Most users, or items, as in files of ratings. Networks named in files are built before weights are seen: for memory."""

PADDED = "embed-pad:"
"""Prefixes of networks with a vector of padding that is trained."""

OF_USERS = ("factors.user_product.weight", "factors.user_beside.weight")
"""The parameters that have a row for each user."""


class Embed(NetworkKind):
    """The network ``embed`` of the module's docstring."""

    def resolve(self, text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
        del shape
        if len(tables) != 1:
            raise InputError(
                f"`model` {text}: takes texts, whose words are positions in one table; if these are such, say their"
                " number by `words`"
            )
        return f"{text}:{tables[0]}"

    def tables(self, text: str) -> tuple[int, ...]:
        return (self.parts(text)[0],)

    def parts(self, text: str) -> tuple[int, tuple[int, ...]]:
        """Size of the table; numbers in the vector of a word, and units of the layers behind their mean."""
        found = re.fullmatch(f"embed(?:-pad)?:{SIZE}(?::({WIDTH}(?:,{WIDTH})*))?", text)
        widths = EMBED_WIDTHS if found is None or found.group(2) is None else tuple(map(int, found[2].split(",")))
        if found is None or max(widths) > MAX_LAYER_WIDTH or len(widths) > MAX_LAYERS:
            raise InputError(
                f"`model`: {text!r:.80}: say the size of the table, and the widths if they are others than the usual ones,"
                f" whole numbers from 1 to {MAX_LAYER_WIDTH}, as in embed:10000:16,16"
            )
        return int(found.group(1)), widths

    def check(self, text: str, features: int) -> None:
        del features
        self.parts(text)

    def layers(self, text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
        del features
        words, widths = self.parts(text)
        table = "Embedding" if text.startswith(PADDED) else "Vectors"
        front = layer("words", "Positions", words), layer("table", table, words, widths[0]), layer("mean", "Mean")
        return (*front, *stack((*widths, classes), tuple(f"fc{number}" for number in range(1, len(widths) + 1))))

    def renamed(self, text: str, shapes: Shapes) -> str:
        words, before = self.parts(text)
        table = "table.weight" if text.startswith(PADDED) else "table.rows.weight"
        widths = (shapes[table][1], *(shapes[f"fc{number}.weight"][0] for number in range(1, len(before))))
        return named(f"{text.partition(':')[0]}:{words}", widths, EMBED_WIDTHS)


class Ncf(NetworkKind):
    """The network ``ncf`` of the module's docstring."""

    def resolve(self, text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
        del shape
        if len(tables) != 2:
            raise InputError(
                f"`model` {text}: takes ratings, positions of users and items in two tables, such as those of movielens"
            )
        return f"{text}:{tables[0]}x{tables[1]}"

    def tables(self, text: str) -> tuple[int, ...]:
        return self.parts(text)[0]

    def parts(self, text: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Numbers of users and items; numbers in the vectors that are multiplied, and in those beside them."""
        found = re.fullmatch(f"ncf:{SIZE}x{SIZE}(?::{WIDTH},{WIDTH})?", text)
        users, items, product, beside = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
        if found is None or max(users, items) > MAX_TABLE or max(product, beside) > MAX_LAYER_WIDTH:
            raise InputError(
                f"`model`: {text!r:.80}: say the numbers of users and items, up to {MAX_TABLE:,}, and the widths of both"
                f" kinds of vectors, up to {MAX_LAYER_WIDTH}, if they are others than the usual ones, as in"
                " ncf:6040x3952:5,10"
            )
        return (users, items), (product, beside) if product else NCF_WIDTHS

    def check(self, text: str, features: int) -> None:
        self.parts(text)
        if features != 2:
            raise InputError(f"`model`: {text}: takes a user and an item, but the records have {features} features")

    def layers(self, text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
        del features
        tables, (product, beside) = self.parts(text)
        return (
            layer("factors", "Factors", *tables, product, beside),
            layer("fc1", "Linear", product + 2 * beside, classes),
        )

    def renamed(self, text: str, shapes: Shapes) -> str:
        widths = tuple(shapes[name][1] for name in OF_USERS)
        return named("ncf:" + "x".join(map(str, self.tables(text))), widths, NCF_WIDTHS)


class Recurrent(NetworkKind):
    """The networks ``lstm``, ``gru`` and ``rnn`` of the module's docstring."""

    def resolve(self, text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
        if len(tables) == 1:
            return f"{text}:{tables[0]}"
        if tables or len(shape) < 2:
            what = "that hold positions in several tables" if tables else f"of shape {shape}"
            raise InputError(
                f"`model` {text}: records {what} are no sequences of vectors; if they are flattened ones, say their size,"
                f" as in {text}:128x9"
            )
        return f"{text}:{shape[0]}x{math.prod(shape[1:])}"

    def tables(self, text: str) -> tuple[int, ...]:
        words = self.parts(text).group("words")
        return () if words is None else (int(words),)

    def widths(self, text: str) -> tuple[int | None, int]:
        """Numbers in the vector of a word, None for sequences of vectors, and units."""
        parts = self.parts(text)
        if parts.group("words") is None:
            return None, int(parts.group("units") or UNITS)
        return int(parts.group("vector") or VECTOR), int(parts.group("behind") or UNITS)

    def parts(self, text: str) -> re.Match[str]:
        """Match of a name: ``steps``, ``values`` and ``units``; or ``words``, ``vector`` and ``behind``."""
        found = re.fullmatch(
            f"{self.name}:(?:(?P<steps>{SIZE})x(?P<values>{SIZE})(?::(?P<units>{WIDTH}))?"
            f"|(?P<words>{SIZE})(?::(?P<vector>{WIDTH}),(?P<behind>{WIDTH}))?)",
            text,
        )
        if not found or max(int(found.group(name) or 1) for name in ("units", "vector", "behind")) > MAX_LAYER_WIDTH:
            kind = text.partition(":")[0]
            raise InputError(
                f"`model`: {text!r:.80}: say the size of the sequences as {kind}:STEPSxVALUES, or of the table of words as"
                f" {kind}:WORDS, and the widths, up to {MAX_LAYER_WIDTH}, if they are others than the usual ones, as in"
                f" {kind}:128x9:{UNITS} and {kind}:10000:{VECTOR},{UNITS}"
            )
        return found

    def check(self, text: str, features: int) -> None:
        size = math.prod(self.record_shape(text, features))
        if size != features:
            raise InputError(f"`model`: {text}: such sequences have {size} features, but the records have {features}")

    def record_shape(self, text: str, features: int) -> tuple[int, ...]:
        parts = self.parts(text)
        return (features,) if parts.group("words") else (int(parts.group("steps")), int(parts.group("values")))

    def layers(self, text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
        parts, (vector, units) = self.parts(text), self.widths(text)
        if vector is None:
            shape = self.record_shape(text, features)
            front, inputs = [layer("steps", "Unflatten", 1, shape)], shape[1]
        else:
            words, inputs = int(parts.group("words")), vector
            front = [layer("words", "Positions", words), layer("table", "Embedding", words, vector)]
        return (
            *front,
            layer("recurrent", self.name.upper(), inputs, units, batch_first=True),
            layer("last", "Last"),
            layer("fc1", "Linear", units, classes),
        )

    def renamed(self, text: str, shapes: Shapes) -> str:
        parts, units = self.parts(text), shapes["recurrent.weight_hh_l0"][1]
        if parts.group("words") is None:
            return named(f"{self.name}:{parts.group('steps')}x{parts.group('values')}", (units,), (UNITS,))
        widths = (shapes["table.weight"][1], units)
        return named(f"{self.name}:{parts.group('words')}", widths, (VECTOR, UNITS))


EMBED = Embed(
    "embed",
    "Words looked up in a table, their vectors averaged, two layers.",
    "Bu, Dong, Long, Su 2020",
    "embed[-pad][-tanh]",
    ("texts",),
)
EMBED_PAD = replace(EMBED, name="embed-pad", help="The same with a vector of padding that is trained.", metavar="")
NCF = Ncf(
    "ncf",
    "Neural collaborative filtering: vectors of user and item, multiplied and beside each other, one layer.",
    "Bu, Dong, Long, Su 2020, after He et al. 2017",
    "ncf",
    ("ratings",),
    no_tanh="ncf has no ReLU to stand in for",
    user_parameters=OF_USERS,
)
LSTM = Recurrent(
    "lstm",
    "One layer of long short-term memory, whose last state is classified.",
    "Hochreiter and Schmidhuber 1997",
    "lstm",
    ("sequences", "texts"),
    no_tanh="the gates of lstm are bounded as they are",
)
GRU = replace(
    LSTM,
    name="gru",
    help="One layer of gated recurrent units, whose last state is classified.",
    source="Cho et al. 2014",
    metavar="gru",
    no_tanh="the gates of gru are bounded as they are",
)
RNN = replace(
    LSTM,
    name="rnn",
    help="One layer of plain recurrent units, with tanh, whose last state is classified.",
    source="Elman 1990",
    metavar="rnn",
    no_tanh="rnn has tanh as it is",
)
