"""A directory appears under its name whole, or not at all.

Everything is written into a sibling directory, fsynced, and swapped in by one `renameat2(RENAME_EXCHANGE)`,
so a process killed at any point leaves the old directory or the new one. Where the file system cannot
exchange, two renames are used and `previous_path` holds the old directory if a kill falls between them.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tessera.formats.errors import AccessError, DiskFullError

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CANNOT_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EPERM)


def staging_prefix(target: Path) -> str:
    return f".{target.name}.writing-"


def previous_path(target: Path) -> Path:
    """Where an interrupted replacement may have left the old directory."""
    return target.with_name(f".{target.name}.previous")


class Staging:
    """A directory beside `target` that becomes `target` on `publish`, and is removed on `discard`.

    A lock on the directory, which the kernel drops with its holder, tells a live one from the remains of a
    killed process; remains are removed by the next writer of the same target.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_remains(target)
        self.path = Path(tempfile.mkdtemp(prefix=staging_prefix(target), dir=target.parent))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def publish(self) -> None:
        """Make everything durable and swap it in. An existing target is replaced whole."""
        self.path.chmod(0o755)
        for path in (*sorted(self.path.iterdir()), self.path):
            fsync(path)
        if self.target.exists():
            _replace(self.path, self.target)
        else:
            self.path.rename(self.target)
        fsync(self.target.parent)
        self._unlock()

    def discard(self) -> None:
        self._unlock()
        shutil.rmtree(self.path, ignore_errors=True)

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _replace(new: Path, target: Path) -> None:
    if exchange(new, target):
        shutil.rmtree(new, ignore_errors=True)
        return
    previous = previous_path(target)
    if previous.exists():
        shutil.rmtree(previous)
    target.rename(previous)
    new.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Swap two paths atomically. False where the file system or the C library cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    result = libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def _remove_remains(target: Path) -> None:
    prefix = staging_prefix(target)
    for path in [p for p in target.parent.iterdir() if p.name.startswith(prefix)]:
        with suppress(OSError):  # another writer's, or gone meanwhile
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(descriptor)


@contextmanager
def write_errors_named(target: Path) -> Iterator[None]:
    """Turns "no space left" into DiskFullError with the space there is, "not permitted" into AccessError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise AccessError(
                f"{target} cannot be written: {error.strerror} ({error.filename}); choose another output"
            ) from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(target.parent).free
        raise DiskFullError(
            f"no space left while writing {target} ({free / 1e6:.0f} MB free on {target.parent}); "
            "what stood there before is untouched. Free some space or choose another output"
        ) from error


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
