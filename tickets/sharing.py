"""Ticket sets that travel, to and from a folder or the Hugging Face Hub: out without what is private, and in only after
everything about them was checked.

A place gives files by name and nothing else: no listing is taken from it, so that what else lies there is never fetched. How
large each file may be is said by the caller; more than that is not read.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dpltm.errors import ArtifactError, DpltmError, InputError, first_line
from dpltm.pruning.ticket_set import TicketSet
from dpltm.tickets.export import export_set
from dpltm.tickets.files import MAX_JSON, check_free, new_folder, read_bytes
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import described, load_ticket_set, lying_in, other_files

DESCRIPTION = "tickets.json"

AT_ONCE = 2**20
"""Bytes that are asked of a server at a time."""

HUB = "hf://"
_REPOSITORY = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


class Place(Protocol):
    """Where the files of a set lie, or will."""

    @property
    def name(self) -> str:
        """What the user calls it."""
        ...

    def fetch(self, file: str, target: Path, most: int) -> bool:
        """Copies a file of that name to ``target``; returns whether there is one.

        Args:
            file: its name.
            target: where the copy goes; there is nothing yet.
            most: bytes that it may have.

        Raises:
            ArtifactError: it has more than ``most`` bytes, or cannot be had.
        """
        ...

    def put(self, folder: Path) -> None:
        """Puts all files of a folder there, whole or not at all.

        Raises:
            ArtifactError: that cannot be done.
        """
        ...


@dataclass(frozen=True)
class Folder:
    """A folder of this machine, or of one that it has mounted."""

    path: Path

    @property
    def name(self) -> str:
        """See :meth:`Place.name`."""
        return str(self.path)

    def fetch(self, file: str, target: Path, most: int) -> bool:
        """See :meth:`Place.fetch`."""
        source = self.path / file
        if not source.exists() and not source.is_symlink():
            return False
        target.write_bytes(read_bytes(source, most))  # no link, pipe or device
        return True

    def put(self, folder: Path) -> None:
        """See :meth:`Place.put`."""
        check_free(self.path)
        with new_folder(self.path) as staging:
            for source in sorted(folder.iterdir()):
                shutil.copyfile(source, staging / source.name)


@dataclass(frozen=True)
class Hub:
    """A repository of the Hugging Face Hub, by its own client.

    Attributes:
        repository: OWNER/NAME.
        revision: branch, tag or commit; None for the newest.
        public: whether everybody may read what is pushed.
    """

    repository: str
    revision: str | None = None
    public: bool = False

    @property
    def name(self) -> str:
        """See :meth:`Place.name`."""
        return f"{HUB}{self.repository}" + ("" if self.revision is None else f"@{self.revision}")

    def fetch(self, file: str, target: Path, most: int) -> bool:
        """See :meth:`Place.fetch`."""
        client = _client()
        with self._said():
            try:
                system = client.HfFileSystem()
                with (
                    system.open(f"{self.repository}/{file}", "rb", revision=self.revision) as answer,
                    target.open("wb") as into,
                ):
                    done = 0
                    while part := answer.read(min(AT_ONCE, most + 1 - done)):
                        done += len(part)
                        if done > most:
                            where = f"{self.name}/{file}"
                            raise ArtifactError(f"{where}: more than the {most:,} bytes that it may have")
                        into.write(part)
            except FileNotFoundError:
                return False
        return True

    def put(self, folder: Path) -> None:
        """See :meth:`Place.put`."""
        client = _client()
        with self._said():
            interface = client.HfApi()
            interface.create_repo(self.repository, private=not self.public, exist_ok=True)
            if not self.public and not interface.model_info(self.repository).private:  # one that was there before
                raise InputError(
                    f"DEST: {self.name}: everybody can read this repository; make it private there, or say --public"
                )
            interface.upload_folder(  # one commit
                repo_id=self.repository, folder_path=str(folder), commit_message="Add lottery tickets of dpltm"
            )

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """A block in which whatever the client says becomes one line."""
        try:
            yield
        except DpltmError:
            raise
        except Exception as error:  # the client's errors, and those of whatever it talks through
            raise ArtifactError(
                f"{self.name}: {first_line(error)}; check the name, the network and your login (hf auth login)"
            ) from None


def _client() -> Any:
    """The Hub's client.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise InputError(f"{HUB}: needs the package {error.name}; pip install 'dpltm[hub]'") from None


def place_of(text: str, argument: str, *, public: bool = False) -> Place:
    """What an address stands for.

    Args:
        text: ``hf://OWNER/NAME[@REVISION]``, ``file:///...`` or the path of a folder.
        argument: what messages call it.
        public: whether everybody may read what is pushed.

    Raises:
        InputError: it is no such address.
    """
    if text.startswith(HUB):
        match = _REPOSITORY.fullmatch(text)
        if match is None or ".." in text:
            raise InputError(f"{argument}: {text:.100}: not a repository; write hf://OWNER/NAME")
        return Hub(match[1], match[2], public)
    scheme, found, rest = text.partition("://")
    if found and scheme != "file":
        raise InputError(f"{argument}: {text:.100}: takes hf://OWNER/NAME and folders; fetch the set into a folder")
    return Folder(Path(rest if found else text))


def destination_of(text: str, *, public: bool) -> Place:
    """What an address stands for that files go to; arguments as :func:`place_of`.

    Raises:
        InputError: it is no such address.
    """
    place = place_of(text, "DEST", public=public)
    if isinstance(place, Hub) and place.revision is not None:
        raise InputError(f"DEST: {text:.100}: sets are pushed to the main branch; leave @{place.revision} out")
    return place


def push(tickets: TicketSet, place: Place, *, predictors: bool = True) -> str:
    """Puts a copy of a set in a place: what ``export_set`` leaves of it, and nothing else.

    Args:
        tickets: the set; ``check_shareable`` has allowed it.
        place: where to.
        predictors: whether trained networks go with it, where they may.

    Returns:
        The digest of the description, which pins all of the set and of its lineage.

    Raises:
        ArtifactError: there is something already, or the place cannot be written to.

    Guarantees:
        No ledger, winner, checkpoint or accuracy on private records leaves: the files that go are those of a set that was
        written anew. Its lineage, with the draws from it, goes with it.
    """
    if isinstance(place, Folder):
        with _named_dest():
            check_free(place.path)
    with tempfile.TemporaryDirectory(prefix="dpltm-push-") as temporary:
        copy = Path(temporary) / "set"
        export_set(tickets, copy, predictors=predictors)
        found = Path(temporary) / "found.json"
        if not isinstance(place, Folder) and place.fetch(DESCRIPTION, found, MAX_JSON):
            raise ArtifactError(f"{place.name}: holds a ticket set already; choose another name")
        digest: str = described(copy)["digest"]
        with _named_dest():
            place.put(copy)
    return digest


@contextlib.contextmanager
def _named_dest() -> Iterator[None]:
    """A block whose refusals name DEST: a push has no `out`."""
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(str(error).replace("`out`", "DEST", 1)) from None


def pull(place: Place, out: Path, digest: str | None = None) -> tuple[TicketSet, str]:
    """Takes a set from a place into a new folder, once everything about it was found to be right.

    Args:
        place: where from.
        out: folder to write; there must be none.
        digest: that its description must have; None to take it as it is.

    Returns:
        The set as it lies there, and the digest of its description.

    Raises:
        ArtifactError: no ticket set there, a file that is missing, too large or damaged, or another digest than expected.

    Guarantees:
        Only the files of a set are asked for, by their names, and of each no more than its description allows, which bounds
        itself. Nothing is at ``out`` before all of it was read, checked and compared; then all of it is.
    """
    check_free(out)
    with new_folder(out) as folder:
        if not place.fetch(DESCRIPTION, folder / DESCRIPTION, MAX_JSON):
            raise ArtifactError(f"{place.name}: no ticket set there (no {DESCRIPTION}); name one that was pushed")
        with _naming(place, folder):
            stated = described(folder)
        if digest is not None and stated["digest"] != digest:
            raise ArtifactError(
                f"{place.name}: its digest is {stated['digest']}, not the one expected; it was changed, or is another set"
            )
        for name, most in other_files(folder).items():
            if not place.fetch(name, folder / name, most):
                raise ArtifactError(f"{place.name}: {name} is missing; the set there is incomplete")
        with _naming(place, folder):
            for wrong in problems(folder):
                raise ArtifactError(wrong)
            tickets = load_ticket_set(folder)
    return lying_in(out, tickets), stated["digest"]


@contextlib.contextmanager
def _naming(place: Place, folder: Path) -> Iterator[None]:
    """A block whose refusals name the place where they would name the folder."""
    try:
        yield
    except DpltmError as error:
        raise ArtifactError(str(error).replace(str(folder), place.name)) from None
