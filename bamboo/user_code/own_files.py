"""Files and folders that the user's code made itself: they are no part of the model."""

import os


class OwnFiles:
    """By absolute paths: files that were written, and folders that were made with all in them."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def wrote(self, path: str) -> None:
        """A file."""
        self._files.add(path)

    def made(self, path: str) -> None:
        """A folder that was not there before."""
        self._folders.add(path)

    def renamed(self, path: str, to: str) -> None:
        """A file or folder, before it is."""
        if path in self._folders:
            self._folders.add(to)
        elif path in self:
            self._files.add(to)

    def __contains__(self, path: str) -> bool:
        if path in self._files or path in self._folders:
            return True
        while self._folders and (above := os.path.dirname(path)) != path:
            if above in self._folders:
                return True
            path = above
        return False
