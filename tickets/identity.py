"""Whose records an artifact speaks of, remembered in the user's configuration folder.

What a registry of records is, ``records.registry`` says. This one writes down what its ids stand for, beside the key, in
files that their owner alone can read:

- ``key``: 32 bytes that all hashes here are taken under.
- ``key.records/ids``: a line for each id, with the *content* that it stands for, a keyed fingerprint of all training rows.
  An id that a registry in memory gave to public records stands there as a keyed hash.
- ``key.records/CONTENT.rows``: keyed hashes of its rows, by which it is recognised in other files (``dpltm.records.rows``).
  Without them, or where there are too many, it may overlap everything.
- ``key.records/CONTENT.shares``: other contents that have rows in common with it: ``same``, or by ``coincidence``; and
  ``regrouped``, of which it says that some are somebody else's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import from_json, ref_from_json
from dpltm.privacy.events import DatasetRef, Event
from dpltm.records.dataset import Dataset
from dpltm.records.registry import MEETING, Met, RecordRegistry, Share, few_enough, kinds_of
from dpltm.records.rows import Rows
from dpltm.tickets.files import staged_file, sync

_PASSING = secrets.token_bytes(32)
"""Stands in for a key that is not to be made yet, so that records can be told apart within this process."""

_MET: dict[tuple[Path, bytes], Met] = {}
"""For each key by itself: what was met before there was one is nothing that can be compared with what is met later."""

_LINE = re.compile(r"([0-9a-f]{32}) ([0-9a-f]{32})\n")
_SHARE = re.compile(r"([0-9a-f]{32}) (same|coincidence|regrouped)")


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
        text = _read(path).decode("ascii", "replace").strip()
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


class UserRegistry(RecordRegistry):
    """What ids stand for, in the user's configuration folder.

    Args:
        remember: write down what is met; otherwise (a dry run, a look) it is forgotten with this process.
    """

    def __init__(self, remember: bool = True) -> None:
        self._writes = remember

    @property
    def key(self) -> bytes:
        return load_key(make=self._writes)

    @property
    def _met(self) -> Met:  # type: ignore[override]
        """What is known in this process alone, of dry runs and of looks before something is entered."""
        return _MET.setdefault((key_path(), load_key(make=False)), Met())

    def adopt(self, ref: DatasetRef, dataset: Dataset) -> None:
        """Writes down what a reference of a registry in memory stands for.

        Args:
            ref: to records that were declared public.
            dataset: those records.

        Raises:
            ArtifactError: the user's configuration folder cannot be written.
        """
        self.reference(dataset, public=True)
        if self._content_of(ref) is None:  # of a part, whose name is random
            self._note(self._adopted(ref), self._content(dataset.rows, dataset.rows.keyed_hashes, self.key))

    def _content_of(self, ref: DatasetRef) -> str | None:
        known = super()._content_of(ref)
        return self._ids().get(self._adopted(ref)) if known is None else known

    def _adopted(self, ref: DatasetRef) -> str:
        """What an adopted reference is written down by: of another registry's id and key, and of this key."""
        said = f"adopted {ref.key_id} {ref.id}".encode()
        return hmac.new(self.key, said, hashlib.sha256).hexdigest()[:32]

    def look_at(self, dataset: Dataset) -> DatasetRef:
        return UserRegistry(remember=False).reference(dataset)

    def _remember(self, content: str, keyed_hashes: Callable[[bytes], np.ndarray], rows: Rows) -> None:
        if _is_written(content) or (content in self._met.rows and not self._writes):
            return
        hashes, met = few_enough(keyed_hashes(self.key)), self._met
        if self._writes:  # before others are looked for: of two that are met at once, one sees the other
            if not (_folder() / f"{content}.rows").exists():
                _drop(_folder() / f"{content}.shares")  # whoever came since was not compared
            _put(_folder() / f"{content}.rows", hashes.astype("<u8").tobytes())
        with MEETING:
            known = [path.stem for path in sorted(_folder().glob("*.rows")) if path.stem != content]
            others: list[Share] = [
                (other, kind) for other in known for kind in kinds_of(hashes, self._rows(other), rows, self.key)
            ]
            if self._writes:
                lines = "".join(f"{other} {kind}\n" for other, kind in others)
                _put(_folder() / f"{content}.shares", lines.encode())
            beside = self._compare(content, hashes, rows)
            met.shares[content] = beside if self._writes else [*others, *beside]
            if not self._writes:
                met.rows[content] = hashes

    def _note(self, number: str, content: str) -> None:
        if (_written_ids() if self._writes else self._ids()).get(number) == content:
            return
        if self._writes:
            _append_id(number, content)
        else:
            self._met.ids[number] = content

    def _ids(self) -> Mapping[str, str]:
        return {**_written_ids(), **self._met.ids}

    def _rows(self, content: str) -> np.ndarray:
        if content in self._met.rows:
            return self._met.rows[content]
        try:
            return np.frombuffer(_read(_folder() / f"{content}.rows"), dtype="<u8").astype(np.uint64)
        except (OSError, ValueError):
            return np.empty(0, dtype=np.uint64)

    def _shares(self, content: str) -> Iterable[Share]:
        passing = self._met.shares.get(content, [])
        try:
            text = _read(_folder() / f"{content}.shares").decode("ascii")
        except (OSError, ValueError):
            return passing
        return [*passing, *_SHARE.findall(text)]

    def _is_comparable(self, content: str) -> bool:
        if len(self._met.rows.get(content, ())):
            return True
        try:
            return _is_written(content) and (_folder() / f"{content}.rows").stat().st_size > 0
        except OSError:
            return False


class _OneLook(UserRegistry):
    """The user's registry as it is now: each file of it is read once, for however many references."""

    def __init__(self) -> None:
        super().__init__(remember=False)
        self._lists: dict[str, tuple[Share, ...]] = {}
        self._comparable: dict[str, bool] = {}
        self._resolved: dict[tuple[DatasetRef, bool], DatasetRef] = {}

    @cached_property
    def key(self) -> bytes:
        return load_key(make=False)

    @cached_property
    def _met(self) -> Met:  # type: ignore[override]
        return _MET.setdefault((key_path(), self.key), Met())

    @cached_property
    def _known_ids(self) -> Mapping[str, str]:
        return super()._ids()

    def _ids(self) -> Mapping[str, str]:
        return self._known_ids

    def resolve(self, ref: DatasetRef, public: bool = True) -> DatasetRef:
        if (ref, public) not in self._resolved:
            self._resolved[ref, public] = super().resolve(ref, public)
        return self._resolved[ref, public]

    def _shares(self, content: str) -> Iterable[Share]:
        if content not in self._lists:
            self._lists[content] = tuple(super()._shares(content))
        return self._lists[content]

    def _is_comparable(self, content: str) -> bool:
        if content not in self._comparable:
            self._comparable[content] = super()._is_comparable(content)
        return self._comparable[content]


def event_reader() -> Callable[[str], Event]:
    """What reads events of a ledger, with what is known of their records at the time of this call.

    Returns:
        A function of an event as the text of a JSON object, which raises ArtifactError if it is none.
    """
    registry = _OneLook()
    return lambda text: registry.resolve_event(_parsed(text))


@lru_cache(maxsize=2**14)
def _parsed(text: str) -> Event:
    """The event in a text, before anything is known of its records: the same in every ledger, and read again and again."""
    try:
        return from_json(json.loads(text))
    except ArtifactError:
        raise
    except (ValueError, RecursionError):
        raise ArtifactError("an event is not valid JSON") from None


def read_event(body: object) -> Event:
    """An event that an artifact holds, with what is known here of its records.

    Raises:
        ArtifactError: it is none.
    """
    return _OneLook().resolve_event(from_json(body))


def read_ref(body: object) -> DatasetRef:
    """A reference that an artifact holds, with what is known here of its records.

    Raises:
        ArtifactError: it is none.
    """
    return UserRegistry(remember=False).resolve(ref_from_json(body))


def _append_id(number: str, content: str) -> None:
    """Writes down what an id stands for."""
    path = _folder() / "ids"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        try:
            line = f"{number} {content}\n".encode()
            if os.write(descriptor, line) < len(line):  # one write: lines of two processes do not mix
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ArtifactError(
            f"{path}: what ids of records stand for cannot be kept ({error.strerror}); make room, or point DPLTM_KEY at"
            " another folder"
        ) from None


def _written_ids() -> dict[str, str]:
    path = _folder() / "ids"
    try:
        status = path.stat()
    except OSError:
        return {}
    return _read_ids(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _read_ids(path: Path, _modified: int, _size: int) -> dict[str, str]:
    try:
        text = _read(path).decode("ascii", "replace")
    except OSError as error:
        raise _no_folder(path, error) from None
    return {match[1]: match[2] for match in _LINE.finditer(text)}


def _is_written(content: str) -> bool:
    return all((_folder() / f"{content}.{end}").exists() for end in ("rows", "shares"))


def _folder() -> Path:
    path = key_path()
    return path.with_name(f"{path.name}.records")


def _read(path: Path) -> bytes:
    """The content of a file, or of what a link leads to; OSError where that is a pipe, which would be waited for."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is not a plain file")
    return path.read_bytes()


def _put(path: Path, data: bytes) -> None:
    """Puts a new file in place whole, readable by its owner alone; of several at once, one wins and all read the same."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with staged_file(path) as staging:
            staging.write_bytes(data)
            sync(staging)
            with contextlib.suppress(FileExistsError):
                os.link(staging, path)
    except OSError as error:
        raise _no_folder(path, error) from None


def _drop(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _no_folder(path, error) from None


def _no_folder(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"{path}: the fingerprint key cannot be read or made ({error.strerror}); point DPLTM_KEY at a file that can"
    )
