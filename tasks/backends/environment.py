"""The image of a machine without a container engine: a locked environment and a copy of the code.

Both lie in folders named by their content: the environment by the lock file it was installed
from (the one the Dockerfile installs), the image by everything that runs. Jobs run from the
copy, so editing the project never changes a run under way.
"""

import fcntl
import platform
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from configs.digests import digest_of, digest_of_file
from configs.loader import ROOT
from tasks.backends.image_source import ImageSource
from tasks.backends.protocols import Image
from tasks.words import last_lines

_INSTALL_TIMEOUT_S = 3600
_INSTALLED_BYTES = 9 * 10**9


class EnvironmentBuilder:
    """Implements `ImageBuilder` with uv."""

    def __init__(self, cache: Path, root: Path = ROOT) -> None:
        self._cache = cache
        self._source = ImageSource("cpu", root)
        self._lock = root / self._source.lock

    def digest(self) -> str:
        lock = digest_of_file(self._lock)
        return digest_of([self._source.digest(), lock, platform.python_version()])

    def find(self, digest: str) -> Image | None:
        app = self._app(digest)
        if not (app / ".complete").is_file():
            return None
        environment = self._environment(app / self._source.lock)
        complete = (environment / ".complete").is_file()
        return _image(digest, environment, app) if complete else None

    def build(self, digest: str, *, force: bool) -> Image:
        """Install and copy what is missing; `force` starts both from nothing.

        Raises:
            RuntimeError: it is not the image of today's code, there is no room on the disk, or
                the installer failed, with its last words.
        """
        with _alone(self._cache / "build.lock"):
            if digest != self.digest():
                raise RuntimeError(
                    f"image {digest[:12]} is gone and cannot be made again, since the code has "
                    "changed: go back to the code of then, or start a new run"
                )
            app, environment = self._app(digest), self._environment(self._lock)
            for folder, make in (
                (environment, partial(_install, lock=self._lock)),
                (app, self._source.copy_to),
            ):
                if force or not (folder / ".complete").is_file():
                    (folder / ".complete").unlink(missing_ok=True)
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    make(folder)
                    (folder / ".complete").touch()
            return _image(digest, environment, app)

    def _environment(self, lock: Path) -> Path:
        content = digest_of([digest_of_file(lock), platform.python_version()])
        return self._cache / "envs" / f"trainer-{content[:12]}"

    def _app(self, digest: str) -> Path:
        return self._cache / "images" / digest[:12]


def _image(digest: str, environment: Path, app: Path) -> Image:
    return Image(digest=digest, python=str(environment / "bin" / "python"), app=str(app))


def _install(folder: Path, lock: Path) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < _INSTALLED_BYTES:
        raise RuntimeError(
            f"the trainer environment needs {_INSTALLED_BYTES / 1e9:.0f} GB and {folder.parent} "
            f"has {free / 1e9:.1f} GB free: make room, or set ARIADNE_CACHE to another disk"
        )
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    python = str(folder / "bin" / "python")
    _uv("pip", "sync", "--quiet", "--compile-bytecode", "--python", python, str(lock))


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode:
        words = " ".join(line.strip() for line in last_lines(done.stderr))[-600:]
        raise RuntimeError(f"uv {arguments[0]} failed: {words or 'it said nothing'}")


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
