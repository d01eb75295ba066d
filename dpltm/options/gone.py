"""What version 0.2 had and this one has not, by its name at the terminal: refused by that name, with what to do instead.

Kept for one version. Readers and prices of what such commands made stay where artifacts and ledgers are read.
"""

from __future__ import annotations

GONE: dict[str, str] = {
    "--criterion dp-energy": "take `criterion` dp-train",
    "--criterion dp-synthetic": "take `criterion` dp-train",
    "--criterion energy": "take `criterion` magnitude",
    "datasets overlap": "compare rows by a program of your own; `test` of a command still refuses rows of its training",
    "generate --pool": "weights are judged one by one; leave it out",
    "synthesize": "make synthetic records by a library, and declare them as what they are; tickets by `criterion` dp-train",
}
"""Instead of what is gone, for people: by ``COMMAND`` (``tickets push``), ``COMMAND --option`` (``train --augment``), or
``--option value`` (``--criterion energy``) where one value of an option went. A name of the package goes by its command."""


def instead(*names: str) -> str | None:
    """Return the end of a refusal of something that is gone, by the first of ``names`` that is; None where none is."""
    return next((f" is gone since 0.3: {GONE[name]}" for name in names if name in GONE), None)
