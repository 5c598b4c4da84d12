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
from pathlib import Path

from configs.digests import digest_of, digest_of_file, digest_of_files
from configs.loader import ROOT
from tasks.backends.protocols import Image

LOCK = ROOT / "containers" / "trainer" / "requirements.lock"
_INSTALL_TIMEOUT_S = 3600
_INSTALLED_BYTES = 9 * 10**9


class EnvironmentBuilder:
    """Implements `ImageBuilder` with uv."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def digest(self) -> str:
        code = digest_of_files(_code_files(), ROOT)
        return digest_of([code, digest_of_file(LOCK), platform.python_version()])

    def find(self, digest: str) -> Image | None:
        image = self._image(digest)
        complete = (Path(image.app) / ".complete", self._environment / ".complete")
        return image if all(marker.is_file() for marker in complete) else None

    def build(self, digest: str, *, force: bool) -> Image:
        """Install and copy what is missing; `force` starts both from nothing.

        Raises:
            RuntimeError: no room on the disk, or the installer failed, with its last words.
        """
        with _alone(self._cache / "build.lock"):
            image = self._image(digest)
            app = Path(image.app)
            for folder, make in ((self._environment, _install), (app, _copy_code)):
                if force or not (folder / ".complete").is_file():
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    make(folder)
                    (folder / ".complete").touch()
            return image

    @property
    def _environment(self) -> Path:
        content = digest_of([digest_of_file(LOCK), platform.python_version()])
        return self._cache / "envs" / f"trainer-{content[:12]}"

    def _image(self, digest: str) -> Image:
        app = self._cache / "images" / digest[:12]
        python = self._environment / "bin" / "python"
        return Image(digest=digest, python=str(python), app=str(app))


def _code_files() -> list[Path]:
    """Everything that runs inside the image."""
    files = [*(ROOT / "configs").glob("*.py"), *(ROOT / "containers").rglob("*.py")]
    return [*files, LOCK]


def _copy_code(folder: Path) -> None:
    for path in _code_files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _install(folder: Path) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < _INSTALLED_BYTES:
        raise RuntimeError(
            f"the trainer environment needs {_INSTALLED_BYTES / 1e9:.0f} GB and {folder.parent} "
            f"has {free / 1e9:.1f} GB free: make room, or set ARIADNE_CACHE to another disk"
        )
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    python = str(folder / "bin" / "python")
    _uv("pip", "sync", "--quiet", "--compile-bytecode", "--python", python, str(LOCK))


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode:
        words = " ".join(done.stderr.split())[-600:]
        raise RuntimeError(f"uv {arguments[0]} failed: {words}")


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
