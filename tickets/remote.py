"""Places that ticket sets are pushed to and pulled from: a folder, a web address, the Hugging Face Hub.

A place gives files by name and nothing else: no listing is taken from it, so that what else lies there is never fetched. How
large each file may be is said by the caller; more than that is not read. Nothing here knows what a ticket set is.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import dpltm
from dpltm.errors import ArtifactError, DpltmError, InputError, first_line
from dpltm.tickets.files import check_free, new_folder, read_bytes

AT_ONCE = 2**20
"""Bytes that are asked of a server at a time."""

PATIENCE = 60
"""Seconds that a server may take to answer."""

HUB = "hf://"
_REPOSITORY = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_HERE = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])[:/]")


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


class _HttpsAlone(urllib.request.HTTPRedirectHandler):
    """Follows no answer that leads away from https."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """See :meth:`HTTPRedirectHandler.redirect_request`."""
        if not newurl.startswith("https://") and not _HERE.match(newurl):
            raise urllib.error.URLError("it leads on to an address that is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass(frozen=True)
class Web:
    """A web address under which the files lie by their names."""

    name: str

    def fetch(self, file: str, target: Path, most: int) -> bool:
        """See :meth:`Place.fetch`."""
        address = f"{self.name.rstrip('/')}/{file}"
        request = urllib.request.Request(address, headers={"User-Agent": f"dpltm/{dpltm.__version__}"})
        try:
            with (
                urllib.request.build_opener(_HttpsAlone).open(request, timeout=PATIENCE) as answer,
                target.open("wb") as into,
            ):
                _copy(answer, into, most, address)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (404, 410):
                return False
            raise _unreachable(address, f"HTTP {error.code}") from None
        except DpltmError:  # which is a ValueError too
            raise
        except urllib.error.URLError as error:
            raise _unreachable(address, str(getattr(error.reason, "strerror", None) or error.reason)) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _unreachable(address, first_line(error)) from None
        return True

    def put(self, folder: Path) -> None:
        """See :meth:`Place.put`."""
        raise ArtifactError(f"{self.name}: a web address takes no files, so {folder.name} stays here")


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
                    _copy(answer, into, most, f"{self.name}/{file}")
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
            raise _unreachable(self.name, first_line(error)) from None


def destination_of(text: str, *, public: bool) -> Place:
    """What an address stands for that files go to; refused before anything is sent.

    Args:
        text: as :func:`place_of`.
        public: whether everybody may read what is pushed.

    Raises:
        InputError: it is no such address.
    """
    place = place_of(text, "DEST", public=public)
    if isinstance(place, Web):
        raise InputError(f"DEST: {text:.100}: a web address takes no files; push to hf://OWNER/NAME, or to a folder")
    if isinstance(place, Hub) and place.revision is not None:
        raise InputError(f"DEST: {text:.100}: sets are pushed to the main branch; leave @{place.revision} out")
    return place


def place_of(text: str, argument: str, *, public: bool = False) -> Place:
    """What an address stands for.

    Args:
        text: ``hf://OWNER/NAME[@REVISION]``, ``https://...``, ``file:///...`` or the path of a folder.
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
    if text.startswith("https://") or _HERE.match(text):
        _check_plain(text, argument)
        return Web(text)
    if text.startswith("http://"):
        raise InputError(f"{argument}: {text:.100}: may be changed by anybody on the way; take https")
    scheme, found, rest = text.partition("://")
    if found and scheme != "file":
        raise InputError(f"{argument}: {text:.100}: takes hf://OWNER/NAME, https://... and folders")
    return Folder(Path(rest if found else text))


def _check_plain(text: str, argument: str) -> None:
    """Raises InputError for an address that names of files cannot be added to, or that holds a secret."""
    parts = urllib.parse.urlsplit(text)
    if "@" in parts.netloc:
        raise InputError(
            f"{argument}: an address with a login in it would be shown on screens; fetch the set into a folder, and pull"
            " that"
        )
    for mark, what in (("?", "a query (?)"), ("#", "a fragment (#)")):
        if mark in text:
            raise InputError(
                f"{argument}: {what} cannot stand behind the address of a folder, to which names of files are added; leave"
                " it out"
            )


def _copy(answer: Any, into: IO[bytes], most: int, where: str) -> None:
    """Copies a stream, and no more of it than it may have."""
    done = 0
    while part := answer.read(min(AT_ONCE, most + 1 - done)):
        done += len(part)
        if done > most:
            raise ArtifactError(f"{where}: more than the {most:,} bytes that it may have; not what it claims")
        into.write(part)


def _client() -> Any:
    """The Hub's client.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise InputError(f"{HUB}: needs the package {error.name}; pip install 'dpltm[hub]'") from None


def _unreachable(where: str, why: str) -> ArtifactError:
    return ArtifactError(f"{where}: {why}; check the name, the network and, of the hub, your login (hf auth login)")
