"""The file that an owner of records runs: a Python archive with a scheme and what encodes by it, which needs NumPy alone.

It holds the very sources of this package that ``dpltm latent encode`` runs, and so gives the same messages.
"""

from __future__ import annotations

from pathlib import Path

from dpltm.errors import InputError
from dpltm.features.bundled_files import DRAWINGS_DIGEST, DRAWINGS_FILE
from dpltm.features.drawings.description import encoder_tensors
from dpltm.features.exact import EXACT_MAPS
from dpltm.local.scheme import Scheme
from dpltm.registry import listed
from dpltm.tickets.files import new_file
from dpltm.tickets.owner_scheme import FOLDER, archive, owner_files
from dpltm.tickets.scheme_files import front
from dpltm.tickets.sources import sources_of

MAIN = "dpltm.cli.owner"

START = b"""\
import sys

if sys.version_info < (3, 11):
    sys.exit("error: this file needs Python 3.11 or newer")
try:
    import numpy
except ImportError:
    sys.exit("error: this file needs NumPy; install it with: python -m pip install numpy")
from dpltm.cli.owner import main

main()
"""
"""What the archive runs first: it is read by any Python 3."""


def write_owner(target: Path, scheme: Scheme, label: str = "the scheme") -> None:
    """Writes the file for owners.

    Args:
        target: the file; it must not exist.
        scheme: that was agreed on.
        label: what messages call it.

    Raises:
        InputError: its features take more than NumPy.
        ArtifactError: the file cannot be written.
    """
    made = front(scheme)
    feature_map = made.exact
    if feature_map is None:
        on = "" if made.projection is None else f" on {made.features} components"
        raise InputError(
            f"{label}: its features, {made.text}{on}, are not made without torch; the file for owners is made for"
            f" `features` {listed(EXACT_MAPS)}, without `components`: agree on such a scheme, or encode with dpltm latent"
            " encode"
        )
    encoder = None
    if feature_map.encoder is not None:
        encoder = encoder_tensors(DRAWINGS_FILE, DRAWINGS_DIGEST, feature_map.features)
    agreed = owner_files(scheme, feature_map, encoder)
    members = {"__main__.py": START, **sources_of(MAIN)}
    members |= {f"dpltm/tickets/{FOLDER}/{name}": value for name, value in agreed.items()}
    with new_file(target) as staging:
        staging.write_bytes(archive(members))
