"""What version 0.2 had and this one has not, by its name at the terminal: refused by that name, with what to do instead.

Kept for one version. Readers and prices of what such commands made stay where artifacts and ledgers are read.
"""

from __future__ import annotations

GONE: dict[str, str] = {
    "latent epsilon --certified": "give --epsilon; the answer says what it certifies",
    "latent train --fresh": "leave it out; an interrupted training begins anew",
    "latent train --prune": "leave it out; tickets are made by dpltm generate",
    "latent train --rounds": "leave it out; tickets are made by dpltm generate",
}
"""Instead of what is gone, for people: by ``COMMAND`` (``tickets push``), ``COMMAND --option`` (``train --augment``), or
``--option value`` (``--criterion energy``) where one value of an option went."""


def instead(*names: str) -> str | None:
    """Return the end of a refusal of something that is gone, by the first of ``names`` that is; None where none is."""
    return next((f" is gone since 0.3: {GONE[name]}" for name in names if name in GONE), None)
