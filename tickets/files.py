"""Writing and reading files so that a crash leaves the old or the new, and a bad file gets one clear line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError

LARGEST_JSON = 16 * 2**20
"""No JSON document of dpltm comes near this many bytes; a larger file is not one."""


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A hidden folder beside ``target`` to write into; it becomes ``target`` if the block ends well, else it goes.

    Raises:
        ArtifactError: ``target`` exists already, or its place cannot be written to.
    """
    check_free(target)
    missing = [parent for parent in target.parents if not parent.exists()]  # deepest first
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise ArtifactError(
            f"--out: cannot write to {target.parent}: {error.strerror}; choose another place"
        ) from None
    try:
        yield staging
        for path in staging.iterdir():
            sync(path)
        staging.chmod(0o755)
        check_free(target)
        staging.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def check_free(target: Path) -> None:
    """Raises ArtifactError if ``target`` exists or cannot be a name: nothing is ever written over."""
    try:
        taken = target.exists() or target.is_symlink()
    except OSError as error:
        raise ArtifactError(f"--out: {str(target)[:80]}...: {error.strerror}; choose another name") from None
    if taken:
        raise ArtifactError(f"--out: {target} exists already; choose another name or remove it first")


def check_writable(path: Path) -> None:
    """Raises ArtifactError unless a file could be made at ``path``; makes nothing, not even its missing parents."""
    ancestor = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        tempfile.TemporaryFile(dir=ancestor).close()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror}; choose another place") from None


def write_json(path: Path, body: object, *, mode: int = 0o644) -> None:
    """Writes ``body`` as indented JSON, in one atomic replacement."""
    data = json.dumps(body, indent=2, allow_nan=False) + "\n"
    staging = None
    try:
        handle, staging = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(data)
        os.chmod(staging, mode)
        sync(Path(staging))
        os.replace(staging, path)
    except OSError as error:
        if staging is not None:
            Path(staging).unlink(missing_ok=True)
        raise ArtifactError(f"{path}: cannot be written: {error.strerror}") from None


def read_json(path: Path, form: str, newest: int) -> dict[str, Any]:
    """The JSON object in ``path``, checked to be a document of ``form`` with a schema this version knows.

    Raises:
        ArtifactError: missing, too large, not JSON, another format, or a newer schema.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_JSON + 1)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_JSON:
        raise ArtifactError(f"{path}: larger than {LARGEST_JSON} bytes; not a document of dpltm")
    try:
        body = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path}: not valid JSON") from None
    check_schema(path, body, form, newest)
    return body


def check_schema(path: Path | str, body: object, form: str, newest: int) -> None:
    """Raises ArtifactError unless ``body`` says that it is a ``form`` of a schema from 1 to ``newest``."""
    if not isinstance(body, dict) or body.get("format") != form:
        raise ArtifactError(f"{path}: not a document of format {form!r}")
    schema = body.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise ArtifactError(f"{path}: schema {schema!r} is not a positive whole number")
    if schema > newest:
        raise ArtifactError(
            f"{path}: schema {schema} is newer than this version of dpltm reads ({newest}); upgrade dpltm"
        )


def sync(path: Path) -> None:
    """Asks the system to put a file or folder on disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")
