"""Writing and reading files so that a crash leaves the old or the new, and a bad file gets one clear line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import itertools
import json
import os
import secrets
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpltm.errors import ArtifactError, DpltmError, InputError, first_line
from dpltm.options import last_part, table
from dpltm.privacy.entry import Lineage, lineage_from_json, to_json

MAX_JSON = 2 * 2**20  # no JSON document of dpltm comes near this many bytes; a larger file is not one

T = TypeVar("T")

_STAGING = ".partial"  # what names of files and folders that are being written end with


def as_path(path: str | Path) -> Path:
    """Return a path that was passed as such, or as a text; InputError if it is neither."""
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path):
        raise InputError("path", path, "a path")
    return Path(path)


def new_folder(target: Path) -> contextlib.AbstractContextManager[Path]:
    """Yield a hidden folder beside ``target``, as :func:`new_file`."""
    return new_file(target, folder=True)


@contextlib.contextmanager
def new_file(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a hidden file beside ``target`` to write into; it becomes ``target`` if the block ends well, and goes if not."""
    check_free(target)
    new_parents = [parent for parent in target.parents if not parent.exists()]  # deepest first
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with staged_file(target, folder=folder) as staging:
            yield staging
            for path in staging.iterdir() if folder else (staging,):
                sync(path)
            staging.chmod(0o755 if folder else 0o644)
            check_free(target)
            staging.rename(target)
            sync(target.parent)
    except BaseException as error:
        remove_empty(new_parents)
        if isinstance(error, OSError):
            raise ArtifactError(f"`out`: {unwritable(target, error)}") from None
        raise


@contextlib.contextmanager
def staged_file(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a hidden file beside ``target``, readable by its owner alone; gone at the end, if it was not moved.

    What processes that died were writing there goes as well. OSError where it cannot be made.
    """
    for path in _staged(target):
        with contextlib.suppress(OSError):
            if (descriptor := lock(path)) is not None:
                _remove(path)
                os.close(descriptor)
    descriptor = None
    while descriptor is None:  # before it is locked, somebody else may take it for left
        staging = target.parent / f".{target.name}.{secrets.token_hex(4)}{_STAGING}"
        staging.mkdir(0o700) if folder else staging.touch(0o600, exist_ok=False)
        with contextlib.suppress(FileNotFoundError):
            descriptor = lock(staging)
    try:
        yield staging
    finally:
        _remove(staging)
        os.close(descriptor)


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of some folders, the deepest first, in which nothing lies."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def unwritable(path: Path, error: OSError) -> ArtifactError:
    """Return the refusal of a place that cannot be written."""
    return ArtifactError(f"{path}: cannot be written: {error.strerror}; make room, or choose another place")


def lock(path: Path) -> int | None:
    """Return a descriptor that locks a file or folder, no link, until it is closed; None where another has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(BlockingIOError, FileNotFoundError):  # somebody else's; or removed, perhaps made anew
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path, follow_symlinks=False).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    os.close(descriptor)
    return None


def taken(target: Path) -> ArtifactError:
    """Return the refusal of what another process has locked."""
    return ArtifactError(f"`out`: another process is at work on {target}; wait for it, or choose another name")


def only_being_written(target: Path) -> bool:
    """Tell whether the folder of ``target`` is there, with nothing in it but what is to become ``target``, or was."""
    folder = target.parent
    return folder.is_dir() and not folder.is_symlink() and set(folder.iterdir()) <= set(_staged(target))


def _staged(target: Path) -> list[Path]:
    """Files and folders being written to become ``target``, or left by processes that died."""
    return list(target.parent.glob(f".{glob.escape(target.name)}.*{_STAGING}"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_free(target: Path, name: str = "out") -> None:
    """Raise ArtifactError if ``target`` exists or cannot be a name: nothing is ever written over."""
    try:
        exists = target.exists() or target.is_symlink()
    except OSError as error:
        raise ArtifactError(f"`{name}`: {str(target)[:80]}...: {error.strerror}; choose another name") from None
    if exists:
        raise ArtifactError(f"`{name}`: {target} exists already; choose another name or remove it first")


def free_name(stem: str, suffix: str) -> Path:
    """``STEMSUFFIX``, or ``STEM-2SUFFIX`` and so on: the first that does not exist yet."""
    stems = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(path for name in stems if not (path := Path(name + suffix)).exists())


def check_writable(path: Path) -> None:
    """Raise ArtifactError unless a file could be made at ``path``; make nothing, not even its missing parents."""
    ancestor = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        tempfile.TemporaryFile(dir=ancestor).close()
    except OSError as error:
        raise unwritable(path, error) from None


def write_json(path: Path, body: object, *, mode: int = 0o644) -> None:
    """Write finite numbers, texts, booleans, None, lists and dicts as indented JSON, in one atomic replacement."""
    data = json.dumps(body, indent=2, allow_nan=False) + "\n"
    with replaced(path, mode) as staging:
        staging.write_text(data, encoding="utf-8")


@contextlib.contextmanager
def replaced(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """Yield a hidden file beside ``path``, which takes its place if the block ends well and goes again if not."""
    try:
        with staged_file(path) as staging:
            yield staging
            staging.chmod(mode)
            sync(staging)
            os.replace(staging, path)
    except OSError as error:
        raise unwritable(path, error) from None


def read_json(path: Path, form: str, schema: int) -> dict[str, Any]:
    """Return the JSON object in ``path``, checked to be a document of ``form`` with the schema of this version."""
    body: Any = parse_json(path, read_bytes(path, MAX_JSON))
    check_schema(path, body, form, schema)
    return body


def parse_json(path: Path | str, data: bytes | str) -> object:
    """Return the content of a JSON document: finite numbers, and no key twice in one object; ArtifactError if it is none."""
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path}: not valid JSON") from None


def read_bytes(path: Path, most: int, least: int = 0, *, links: bool = False, first: int = -1) -> bytes:
    """Return the content of a plain file: no link (but with ``links``), device or pipe; or its ``first`` bytes alone.

    ArtifactError for another file, or one of fewer than ``least`` or more than ``most`` bytes; nothing is read then.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as stream:
            state = os.fstat(stream.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise ArtifactError(f"{path}: is not a plain file")
            if not least <= state.st_size <= most:
                raise ArtifactError(
                    f"{path}: {state.st_size} bytes, where {least} to {most} are expected; damaged, or not what it claims"
                )
            return stream.read(first)
    except OSError as error:
        why = "is a link, which is not followed" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise ArtifactError(f"{path}: {why}") from None


def read_header(path: Path, most: int) -> dict[str, Any]:
    """Return a safetensors file's entries on its tensors, by name, and its ``__metadata__``; only its form is checked."""
    data = read_bytes(path, most + MAX_JSON, 8, first=8 + MAX_JSON)
    size = int.from_bytes(data[:8], "little")
    try:
        if size > min(len(data) - 8, MAX_JSON):
            raise ValueError("longer than the file")
        header = json.loads(data[8 : 8 + size])
        metadata = header.get("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("metadata that is no text")
    except (ValueError, RecursionError, AttributeError):
        raise ArtifactError(f"{path}: not a valid safetensors file") from None
    return header


def digest_of(body: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of all keys but ``digest``, as JSON with sorted keys and no blanks (``docs/formats.md``)."""
    rest = {key: value for key, value in body.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_schema(path: Path | str, body: object, form: str, schema: int, instead: str = "make it again") -> None:
    """Raise ArtifactError unless ``body`` states ``form`` and this schema; ``instead`` is the fix of an older one."""
    stated = body.get("schema") if isinstance(body, dict) and body.get("format") == form else None
    if type(stated) is not int:
        raise ArtifactError(f"{path}: not a document of format {form!r}")
    if stated > schema:
        raise ArtifactError(
            f"{path}: schema {stated!r:.40} is newer than this version of dpltm reads ({schema}); upgrade dpltm"
        )
    if stated < schema:
        raise ArtifactError(f"{path}: schema {stated!r:.40} was written by dpltm before 0.3; {instead}")


@dataclass(frozen=True)
class Document:
    """A kind of JSON document with a digest over all of it; ``keys`` are all but ``format``, ``schema`` and ``digest``."""

    form: str
    schema: int
    keys: frozenset[str]

    def sealed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document of these contents, with its format, schema and digest."""
        stated = {"format": self.form, "schema": self.schema, **body}
        return {**stated, "digest": digest_of(stated)}

    def checked(self, path: Path, body: object) -> dict[str, Any]:
        """Return the document that ``body``, parsed JSON from ``path``, is."""
        check_schema(path, body, self.form, self.schema)
        assert isinstance(body, dict)
        if strange := body.keys() ^ {*self.keys, "format", "schema", "digest"}:
            raise ArtifactError(f"{path}: unknown or missing key {min(strange)!r:.80}")
        try:
            same = body["digest"] == digest_of(body)
        except RecursionError:
            raise ArtifactError(f"{path}: not valid JSON") from None
        if not same:
            raise ArtifactError(f"{path}: the digest does not match; it is damaged or was changed")
        return body

    def read(self, path: Path, most: int = MAX_JSON) -> dict[str, Any]:
        """Return the document in a file of at most so many bytes."""
        return self.checked(path, parse_json(path, read_bytes(path, most)))


LINEAGE, MAX_LINEAGE = "lineage.json", 2**27
"""File of an artifact's folder that holds its lineage, and the bytes that it may have."""

_LINEAGE = Document("dpltm-lineage", 1, frozenset({"of", "lineage"}))


def write_lineage(folder: Path, lineage: Lineage, of: str) -> None:
    """Write the lineage of an artifact into its folder, in one atomic replacement."""
    body = _LINEAGE.sealed({"of": of, "lineage": to_json(lineage)})
    write_json(folder / LINEAGE, body)


def read_lineage(folder: Path, of: str) -> Lineage:
    """Return the lineage of the artifact whose id is ``of``; ArtifactError if it is missing, damaged, or another's."""
    path = folder / LINEAGE
    body = _LINEAGE.read(path, MAX_LINEAGE)
    if body["of"] != of:
        raise ArtifactError(f"{path}: belongs to another artifact; its weights, its masks or this file were exchanged")
    return lineage_from_json(body["lineage"], f"{path}: lineage")


def add_lineage(folder: Path, lineage: Lineage, of: str) -> None:
    """Add to the lineage of an artifact in its folder; processes take turns."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be read: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        write_lineage(folder, read_lineage(folder, of) | lineage, of)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Ask the system to put a file or folder on disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return body


def attempt(read: Callable[[], T], problems: list[str]) -> T | None:
    """Return what is read; None where that is refused, which goes to the problems, once."""
    try:
        return read()
    except (DpltmError, OSError, ValueError) as error:
        if (problem := first_line(error)) not in problems:
            problems.append(problem)
        return None


def read_section(path: Path, name: str) -> dict[str, Any]:
    """Return the table ``[name]`` of a TOML file, or the whole file where it has no tables; InputError if it is none."""
    body = read_toml(path)
    if any(isinstance(value, dict) for value in body.values()):
        return table(path, body, name)
    return body


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        return tomllib.loads(read_bytes(path, MAX_JSON, links=True).decode("utf-8-sig"))
    except ArtifactError as error:
        raise InputError(f"`config` {error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"`config` {path}: not valid TOML: {error}") from None


# How long a training on private records takes grows with how many they are, and with the batches that were drawn; a folder's
# name tells who its owner is. Both are for the terminal of whoever owns the records.

DURATIONS = ("seconds", "minutes")
PLACES = ("run", "ticket_set", "out", "config", "figure", "messages", "scheme")
"""Keys of answers whose values are durations, and paths."""


def published(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as an artifact keeps it: no durations, and of paths their last part."""
    return {
        key: last_part(value) if key in PLACES and isinstance(value, str) else value
        for key, value in answer.items()
        if key not in DURATIONS
    }
