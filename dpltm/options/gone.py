"""What version 0.2 had and this one has not, by its name at the terminal: refused by that name, with what to do instead.

Kept for one version. Readers and prices of what such commands made stay where artifacts and ledgers are read.
"""

from __future__ import annotations

GONE: dict[str, str] = {
    "tickets push": "run dpltm tickets export, then hf upload NAME FOLDER",
    "tickets pull": "run hf download NAME --local-dir FOLDER, then dpltm tickets verify FOLDER",
    "export --to": "leave it out; a run is written for ONNX Runtime",
    "--components": "take drawings:K or photographs:K, which bring their directions",
    "--features network": "take scatter, drawings or photographs, or `freeze` the first layers of a `model` FILE:NAME",
    "--public": "leave it out; scatter and conv are normalised within each record",
    "features": "scripts/make_drawings.py and scripts/make_photographs.py of the repository make what is bundled",
}
"""Instead of what is gone, for people: by ``COMMAND`` (``tickets push``), ``COMMAND --option`` (``train --augment``),
``--option`` where several commands had it, or ``--option value`` (``--criterion energy``) where one value went."""


def instead(*names: str) -> str | None:
    """Return the end of a refusal of something that is gone, by the first of ``names`` that is; None where none is."""
    return next((f" is gone since 0.3: {GONE[name]}" for name in names if name in GONE), None)
