"""Whose records an artifact speaks of: random ids outside, and what they stand for in the user's configuration folder.

An exact digest of private records is a function of them: published before and after a deletion, it tells whether the record
was there. So artifacts carry an id that is random each time. What it stands for is written down beside the key, in files
that their owner alone can read:

- ``key``: 32 bytes that all hashes here are taken under.
- ``key.records/ids``: a line for each id, with the *content* that it stands for, a keyed fingerprint of all training rows.
- ``key.records/CONTENT.rows``: keyed hashes of its rows, by which it is recognised in other files (``dpltm.data.rows``).
  Without them, or where there are too many, it may overlap everything.
- ``key.records/CONTENT.shares``: other contents that have rows in common with it: ``same``, or by ``coincidence``.

Records declared public are named by a fingerprint under a key that everybody has, so that anybody can see whether they are
the same. Only what is public all through has one: not a part of a file whose rest is private.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from dpltm.data import Dataset, Rows, count_shared, key_id, share_rows
from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.event_json import from_json, ref_from_json
from dpltm.privacy.events import UNKNOWN, Cut, DatasetRef, Event, ProvenanceEvent

_PASSING = secrets.token_bytes(32)
"""Stands in for a key that is not to be made yet, so that records can be told apart within this process."""

PUBLIC_KEY = bytes(32)
"""Everybody's: under it records that were declared public are named."""

MOST_ROWS = 2**22
"""Hashes that are kept of one dataset. Of a larger one nobody can tell whom it shares rows with: it may overlap all."""

_LINE = re.compile(r"([0-9a-f]{32}) ([0-9a-f]{32})\n")
_SHARE = re.compile(r"[0-9a-f]{32} (?:same|coincidence)")


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
            _put(path, f"{secrets.token_hex(32)}\n".encode())
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise _no_folder(path, error) from None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ArtifactError(
            f"{path}: not a fingerprint key (64 hexadecimal digits); restore it or point DPLTM_KEY at one"
        )
    return key


def reference(dataset: Dataset, *, public: bool = False, make_key: bool = True) -> DatasetRef:
    """What artifacts write down about a dataset: a name, a random id, a part; with what they stand for, in memory.

    Args:
        dataset: the records.
        public: whether they are declared public.
        make_key: write down what the id stands for; otherwise (a dry run) it is forgotten with this process.

    Raises:
        ArtifactError: the configuration folder cannot be read or written.
    """
    key = load_key(make=make_key)
    hashes = cache(dataset.rows.keyed_hashes)  # large data take a second; what was met before takes none
    content = _content(dataset.rows, hashes, key, write=make_key)
    _remember(content, hashes, key, write=make_key)
    published = _content(dataset.rows, hashes, PUBLIC_KEY, write=make_key)
    _note(published, content, write=make_key)  # whoever names these records publicly is understood here
    part = dataset.part
    if public and dataset.whole:  # of a part, the fingerprint would tell of the rest
        ref = DatasetRef(dataset.name, published, key_id(PUBLIC_KEY), part.start, part.stop, part.cut)
    else:
        ref = DatasetRef(dataset.name, secrets.token_hex(16), key_id(key), part.start, part.stop, part.cut)
        _note(ref.id, content, write=make_key)
    return resolve(ref)


def resolve(ref: DatasetRef, public: bool = True) -> DatasetRef:
    """The reference with what is known here of what it stands for.

    Args:
        ref: as it was read.
        public: whether it only says that records were declared public. A public name that nobody here has met then stands
            for other records than those known here; as what a release was made from, it may be any.
    """
    key = load_key(make=False)
    ours, everybodys = key_id(key), key_id(PUBLIC_KEY)
    content = _ids().get(ref.id) if ref.key_id in (ours, everybodys) else None
    if content is None:
        unmet = f"{ours}:public {ref.id}" if public and ref.key_id == everybodys else UNKNOWN
        return replace(ref, content=unmet, shares=frozenset(), same=frozenset())
    if not _is_kept(content):  # known to be the same as itself, and not to be apart from anything
        return replace(ref, content=f"{content}:{content}", shares=frozenset(), same=frozenset())
    shares = [line.split() for line in _shares(content)]
    return replace(
        ref,
        content=f"{ours}:{content}",
        shares=frozenset(f"{ours}:{other}" for other, _ in shares),
        same=frozenset(f"{ours}:{other}" for other, kind in shares if kind == "same"),
    )


def resolved(event: Event) -> Event:
    """The event with what is known here of its records."""
    public = isinstance(event, ProvenanceEvent) and event.provenance == "public"
    return replace(event, dataset=resolve(event.dataset, public))


def read_event(body: object) -> Event:
    """An event that an artifact holds, with what is known here of its records.

    Raises:
        ArtifactError: it is none.
    """
    return resolved(from_json(body))


def read_ref(body: object) -> DatasetRef:
    """A reference that an artifact holds, with what is known here of its records.

    Raises:
        ArtifactError: it is none.
    """
    return resolve(ref_from_json(body))


def ref_to_words(ref: DatasetRef) -> str:
    """A reference in a line, as ``dpltm tune`` writes it into a file of settings: NAME ID KEY CUT START STOP."""
    return f"{ref.name} {ref.id} {ref.key_id} {ref.cut} {ref.start} {ref.stop}"


def ref_from_words(flag: str, text: str) -> DatasetRef:
    """The reference that :func:`ref_to_words` wrote, or a version before 0.2: NAME FINGERPRINT KEY START STOP.

    Raises:
        InputError: it is none.
    """
    try:
        *head, start, stop = text.rsplit(" ", 5)
        if len(head) == 4 and head[3] in get_args(Cut):
            body = dict(zip(("name", "id", "key_id", "cut"), head, strict=True))
        else:
            name, fingerprint, key = text.rsplit(" ", 4)[:3]
            body = {"name": name, "fingerprint": fingerprint, "key_id": key}
        return read_ref({**body, "start": int(start), "stop": int(stop)})
    except (ValueError, ArtifactError):
        raise InputError(f"{flag}: not as dpltm tune writes it: NAME ID KEY CUT START STOP") from None


def rows_of(ref: DatasetRef) -> np.ndarray | None:
    """Keyed hashes of the rows that a reference stands for, sorted; None where they are not known here."""
    content = _ids().get(ref.id)
    found = None if content is None else _rows(content)
    return None if found is None or not len(found) else found


def _content(rows: Rows, keyed_hashes: Callable[[bytes], np.ndarray], key: bytes, *, write: bool) -> str:
    """The keyed fingerprint of all rows, whatever their order: 32 hexadecimal digits.

    It takes a second or two of large data, so it is looked up by the digest of the very file where that was met before.
    """
    asked = hmac.new(load_key(make=False), b"rows" + key + rows.digest.encode(), hashlib.sha256).hexdigest()[:32]
    found = _ids().get(asked)
    if found is None:
        hashes = keyed_hashes(key).astype("<u8")
        found = hashlib.blake2b(hashes.tobytes(), digest_size=16, key=key).hexdigest()
        _note(asked, found, write=write)
    return found


def _remember(content: str, keyed_hashes: Callable[[bytes], np.ndarray], key: bytes, *, write: bool) -> None:
    """Writes down a content that is met for the first time, and which others it has rows in common with."""
    passing = _passing()
    if _is_written(content) or (content in passing.rows and not write):
        return
    hashes = keyed_hashes(key)
    hashes = hashes if len(hashes) <= MOST_ROWS else hashes[:0]
    if write:  # before others are looked for: of two that are met at once, one sees the other
        if not (_folder() / f"{content}.rows").exists():
            _drop(_folder() / f"{content}.shares")  # whoever came since was not compared
        _put(_folder() / f"{content}.rows", hashes.astype("<u8").tobytes())
    known = [path.stem for path in sorted(_folder().glob("*.rows")) if path.stem != content]
    others = [f"{other} {kind}" for other in known if (kind := _kinship(hashes, _rows(other))) is not None]
    if write:
        _put(_folder() / f"{content}.shares", "".join(f"{line}\n" for line in others).encode())
    beside = []
    for other, theirs in passing.rows.items():
        if other != content and (kind := _kinship(hashes, theirs)) is not None:
            beside.append(f"{other} {kind}")
            passing.shares[other].append(f"{content} {kind}")
    passing.shares[content] = beside if write else [*others, *beside]
    if not write:
        passing.rows[content] = hashes


@dataclass(frozen=True)
class _Passing:
    """What is known in this process alone, of dry runs and of looks before something is entered."""

    ids: dict[str, str] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    shares: dict[str, list[str]] = field(default_factory=dict)


_PASSED: dict[tuple[Path, bytes], _Passing] = {}
"""For each key by itself: what was met before there was one is nothing that can be compared with what is met later."""


def _passing() -> _Passing:
    return _PASSED.setdefault((key_path(), load_key(make=False)), _Passing())


def _note(number: str, content: str, *, write: bool) -> None:
    """Writes down what an id stands for, once."""
    if (_written_ids() if write else _ids()).get(number) == content:
        return
    if not write:
        _passing().ids[number] = content
        return
    path = _folder() / "ids"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{number} {content}\n".encode())  # one write: lines of two processes do not mix
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ArtifactError(
            f"{path}: what ids of records stand for cannot be kept ({error.strerror}); make room, or point DPLTM_KEY at"
            " another folder"
        ) from None


def _ids() -> dict[str, str]:
    """What ids stand for."""
    return {**_written_ids(), **_passing().ids}


def _written_ids() -> dict[str, str]:
    path = _folder() / "ids"
    try:
        found = path.stat()
    except OSError:
        return {}
    return _read_ids(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4)
def _read_ids(path: Path, _modified: int, _size: int) -> dict[str, str]:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise _no_folder(path, error) from None
    return {found[1]: found[2] for found in _LINE.finditer(text)}


def _rows(content: str) -> np.ndarray:
    if content in _passing().rows:
        return _passing().rows[content]
    path = _folder() / f"{content}.rows"
    try:
        return np.frombuffer(path.read_bytes(), dtype="<u8").astype(np.uint64)
    except (OSError, ValueError):
        return np.empty(0, dtype=np.uint64)


def _is_kept(content: str) -> bool:
    """Whether what a content shares is known, and its rows are at hand to be compared."""
    if len(_passing().rows.get(content, ())):
        return True
    try:
        return _is_written(content) and (_folder() / f"{content}.rows").stat().st_size > 0
    except OSError:
        return False


def _shares(content: str) -> tuple[str, ...]:
    """Lines of another content, and why it has rows in common with this one."""
    passing = tuple(_passing().shares.get(content, ()))
    try:
        return (*passing, *_SHARE.findall((_folder() / f"{content}.shares").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return passing


def _is_written(content: str) -> bool:
    return all((_folder() / f"{content}.{end}").exists() for end in ("rows", "shares"))


def _kinship(one: np.ndarray, other: np.ndarray) -> Literal["same", "coincidence"] | None:
    """Why two arrays of hashes have some in common; None where they have not."""
    if not share_rows(one, other):
        return None
    return "same" if count_shared(one, other) or count_shared(other, one) else "coincidence"


def _folder() -> Path:
    path = key_path()
    return path.with_name(f"{path.name}.records")


def _put(path: Path, data: bytes) -> None:
    """Puts a new file in place whole, readable by its owner alone; of several at once, one wins and all read the same."""
    staging = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, staging = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        with contextlib.suppress(FileExistsError):
            os.link(staging, path)
    except OSError as error:
        raise _no_folder(path, error) from None
    finally:
        if staging is not None:
            Path(staging).unlink(missing_ok=True)


def _drop(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _no_folder(path, error) from None


def _no_folder(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"{path}: the fingerprint key cannot be read or made ({error.strerror}); point DPLTM_KEY at a file that can"
    )
