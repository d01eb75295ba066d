"""What stages refuse and note, in the words of an estimator."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from dpltm.errors import DpltmError, named

_WORDS = {
    "x": "X",
    "records": "n_records",
    "seed": "random_state",
    "eps1": "select_epsilon",
    "ticket": "tickets",
    "target": "tickets",
}
"""What parameters are called here, by the names that the stages have for them."""

_PERSONS = "train with `unit_column`, the column that says whose a row is"

_COUNTED = re.compile(r"\b(\d+) of the (\d+) test records of(?= the scored records\b)")

_THOSE = re.compile(r"\b\d+ of those whose")


@contextlib.contextmanager
def in_our_words() -> Iterator[None]:
    """A block whose refusals name parameters of an estimator."""
    try:
        yield
    except DpltmError as error:
        error.args = (in_words_of_fit(str(error).replace("`ticket`: unknown network", "`model`: unknown network")),)
        raise


def in_words_of_fit(text: str) -> str:
    """A sentence of a stage in the words of an estimator, which tell no private number of records."""
    text = _THOSE.sub("some of those whose", text)
    text = _COUNTED.sub(lambda match: "all of" if match[1] == match[2] else "some of", text)
    return named(
        text.replace(_PERSONS, "pass `units` to fit, which says whose each is"),
        lambda name: f"`{_WORDS.get(name, name)}`",
    )
