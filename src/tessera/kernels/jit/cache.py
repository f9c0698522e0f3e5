"""On-disk cache of compiled kernels, shared by the CPU and the CUDA compiler drivers.

An entry is a directory `<root>/<key>/` holding the artifact and `meta.json` (size and sha256 of the
artifact, what built it). Entries appear by one atomic directory rename, so a process killed in the middle,
or two processes building the same key, never leave a half-written entry under its final name.
"""

import atexit
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tessera.kernels.jit.errors import KernelCacheError

log = logging.getLogger(__name__)

_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def default_root() -> Path:
    """`TESSERA_CACHE_DIR`, else `$XDG_CACHE_HOME/tessera`, else `~/.cache/tessera`.

    Raises KernelCacheError where none of them is set and there is no home directory.
    """
    if explicit := os.environ.get("TESSERA_CACHE_DIR"):
        return Path(explicit)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera"
    except RuntimeError as error:
        raise KernelCacheError(
            f"{error} Set TESSERA_CACHE_DIR to where compiled kernels are to be"
        ) from error


def digest(*parts: str | bytes) -> str:
    """Hex key over length-prefixed parts, so that no two different part lists collide by concatenation."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()[:40]


def closure(source: bytes, include_dirs: Iterable[Path]) -> dict[str, bytes]:
    """Every header that `source` includes with quotes, transitively: {name as included: contents}.

    Names that no directory holds are left to the compiler, which reports them better than we could.
    """
    dirs = list(include_dirs)
    found: dict[str, bytes] = {}
    pending = [name.decode() for name in _INCLUDE.findall(source)]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        for directory in dirs:
            path = directory / name
            if path.is_file():
                found[name] = path.read_bytes()
                pending += [n.decode() for n in _INCLUDE.findall(found[name])]
                break
    return dict(sorted(found.items()))


class ArtifactCache:
    """Directory of compiled artifacts addressed by key.

    Where `root` cannot be written, what it holds is used, and the rest goes to a private temporary directory,
    with one log line. Raises KernelCacheError where no temporary directory can be written either.
    """

    def __init__(self, root: Path | None = None) -> None:
        wanted = root or default_root()
        self.root = self._writable(wanted)
        self._read = tuple(dict.fromkeys((wanted, self.root)))

    @staticmethod
    def _writable(root: Path) -> Path:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            return _fallback(root, error.strerror or str(error))
        return root

    def get(self, key: str, name: str) -> Path | None:
        """Path of a whole, uncorrupted artifact, or None."""
        return next((path for root in self._read if (path := _whole(root / key, name))), None)

    def get_or_build(self, key: str, name: str, build: Callable[[Path], None], note: str = "") -> Path:
        """Path of the artifact, built by `build(path)` if it is not there. Safe across threads and processes.

        `build` writes the artifact to the path it is given and raises on failure; nothing is kept then.
        Raises KernelCacheError where the artifact cannot be written.
        """
        if found := self.get(key, name):
            return found
        try:
            return self._build(key, name, build, note)
        except OSError as error:
            raise KernelCacheError(
                f"compiled kernels cannot be written to {self.root} ({error}): make room there, or set "
                "TESSERA_CACHE_DIR to another directory"
            ) from error

    def _build(self, key: str, name: str, build: Callable[[Path], None], note: str) -> Path:
        with self._lock(key):
            if found := self.get(key, name):
                return found
            for left in self.root.glob(f".{key}-*"):  # by a builder that was killed: the lock is ours now
                shutil.rmtree(left, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=self.root))
            try:
                build(work / name)
                data = (work / name).read_bytes()
                meta = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "note": note}
                (work / "meta.json").write_text(json.dumps(meta))
                for path in (work / name, work / "meta.json", work):
                    _fsync(path)
                entry = self.root / key
                if entry.exists():  # corrupt, or it would have been returned above
                    shutil.rmtree(entry)
                work.rename(entry)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
        return entry / name

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """Serialises builders of one key. The lock goes with its holder, even one that is killed."""
        with open(self.root / f".{key}.lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)


def _whole(entry: Path, name: str) -> Path | None:
    artifact = entry / name
    try:
        expected = json.loads((entry / "meta.json").read_text())["sha256"]
        data = artifact.read_bytes()
    except (OSError, ValueError, KeyError, TypeError):  # not there, or its description is damaged
        return None
    if expected != hashlib.sha256(data).hexdigest():
        log.warning("kernel cache entry %s is corrupt: rebuilding it", entry)
        return None
    return artifact


@cache
def _fallback(root: Path, reason: str) -> Path:
    """A directory in place of `root`, the same one each time, that goes when the process ends."""
    try:
        fallback = Path(tempfile.mkdtemp(prefix="tessera-cache-"))
    except OSError as error:
        raise KernelCacheError(
            f"compiled kernels can go neither to {root} ({reason}) nor to a temporary directory ({error}): "
            "set TESSERA_CACHE_DIR to a writable directory"
        ) from error
    atexit.register(shutil.rmtree, fallback, ignore_errors=True)
    log.warning(
        "kernel cache %s is not writable (%s): what it lacks is compiled into %s for this process only; "
        "set TESSERA_CACHE_DIR to a writable directory to keep kernels between runs",
        root,
        reason,
        fallback,
    )
    return fallback


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
