"""A hub in memory: what ``huggingface_hub`` offers and dpltm uses, on fsspec's own file system in memory."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem


class HubError(Exception):
    """What the client raises where it is not let in."""


class FakeHub(types.ModuleType):
    """Stands in for the module.

    Attributes:
        made: repositories that were made, and whether they are private.
        commits: names of the files of each upload.
        closed: whether everything is refused.
    """

    def __init__(self) -> None:
        super().__init__("huggingface_hub")
        self.made: dict[str, bool] = {}
        self.commits: list[list[str]] = []
        self.closed = False
        self.files: dict[str, bytes] = {}
        hub = self

        class Files(MemoryFileSystem):
            """Repositories as folders; of one revision."""

            store: dict[str, Any] = {}  # noqa: RUF012
            pseudo_dirs = [""]  # noqa: RUF012
            cachable = False

            def open(self, path: str, mode: str = "rb", revision: str | None = None, **more: Any) -> Any:
                if hub.closed:
                    raise HubError("403 Forbidden: who are you?\nRequest ID: 1")
                if revision not in (None, "v1"):
                    raise FileNotFoundError(path)
                return super().open(path, mode, **more)

        class Api:
            """Its calls, with the arguments that it has."""

            def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
                if hub.closed:
                    raise HubError("401 Unauthorized: log in")
                assert exist_ok
                hub.made.setdefault(repo_id, private)

            def model_info(self, repo_id: str) -> types.SimpleNamespace:
                return types.SimpleNamespace(private=hub.made[repo_id])

            def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
                assert repo_id in hub.made
                assert commit_message
                paths = sorted(Path(folder_path).iterdir())
                hub.commits.append([path.name for path in paths])
                for path in paths:
                    Files().pipe(f"{repo_id}/{path.name}", path.read_bytes())

        self.HfFileSystem, self.HfApi = Files, Api

    def put(self, path: str, data: bytes) -> None:
        """Somebody else's commit."""
        self.HfFileSystem().pipe(path, data)
