"""The fingerprint key, and references to records that may be written down."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from pathlib import Path

from dpltm.data import Dataset
from dpltm.errors import ArtifactError
from dpltm.privacy.events import OPEN_END, DatasetRef

_PASSING = secrets.token_bytes(32)
"""Stands in for a key that is not to be made yet, so that records can be told apart within this process."""


PUBLIC_KEY = bytes(32)
"""Under it public sources of sets that are handed on are named, so that anyone can tell whether records are the same."""


def key_path() -> Path:
    """Where the key lies: ``DPLTM_KEY``, else ``dpltm/key`` in the user's configuration folder."""
    if named := os.environ.get("DPLTM_KEY"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "dpltm" / "key"


def load_key(*, make: bool = True) -> bytes:
    """The 32-byte key, made on first use and readable by its owner only.

    Args:
        make: write a new key if there is none; otherwise a passing one is returned, which nothing on disk was made with.

    Raises:
        ArtifactError: it can be neither read nor made, or is not 64 hexadecimal digits.
    """
    path = key_path()
    if not make and not path.exists():
        return _PASSING
    try:
        if not path.exists():
            _make_key(path)
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise ArtifactError(
            f"{path}: the fingerprint key cannot be read or made ({error.strerror}); point DPLTM_KEY at a file that can"
        ) from None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ArtifactError(
            f"{path}: not a fingerprint key (64 hexadecimal digits); restore it or point DPLTM_KEY at one"
        )
    return key


def _make_key(path: Path) -> None:
    """Puts a new key in place whole; of several first uses at once, one wins and all read the same key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, staging = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # readable by its owner only
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(secrets.token_hex(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(staging, path)
    finally:
        os.unlink(staging)


def key_id(key: bytes) -> str:
    """Short public name of a key."""
    return hashlib.sha256(b"dpltm key id" + key).hexdigest()[:8]


def reference(dataset: Dataset, *, make_key: bool = True, key: bytes | None = None) -> DatasetRef:
    """What ledgers and ticket sets write down about a dataset: a name, a keyed fingerprint, a range of records.

    Where a public number of records was declared, the true one is private: a whole split then has an open end. So it has
    where the records are users: how many ratings they gave is private, and ranges are of ratings. And so it has of known
    ratings, whose public number is not that of the training split.

    Args:
        dataset: the records.
        make_key: make the user's key if there is none yet.
        key: to use in place of the user's.
    """
    key = load_key(make=make_key) if key is None else key
    start, stop = dataset.subset
    known = dataset.rated and dataset.records_origin == "described"
    if dataset.whole and (dataset.records_origin == "declared" or dataset.unit == "user" or known):
        stop = OPEN_END
    return DatasetRef(dataset.name, dataset.fingerprint(key), key_id(key), start, stop)
