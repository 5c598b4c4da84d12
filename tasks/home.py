"""Where Ariadne lives on this machine: the home, its short runtime folder, and the cache.

The only module that spells these paths. Everything under the home belongs to one control plane
and is safe to delete after `make down`; the cache is shared by all homes and can be made again.
"""

import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from configs.loader import ROOT

# Paths end up in PYTHONPATH, database URLs and the supervisor's ini file; each of these has a
# meaning there.
_UNSAFE = re.compile(r"[^\w ./+@=,~-]")

_LOCK_TIMEOUT_S = 120


@dataclass(frozen=True)
class Home:
    """One control plane's folder. Two homes share nothing but the cache."""

    root: Path

    def __post_init__(self) -> None:
        root = self.root.expanduser().resolve()
        if found := _UNSAFE.search(str(root)):
            raise ValueError(f"ARIADNE_HOME {root} holds {found[0]!r}; choose a folder without it")
        object.__setattr__(self, "root", root)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """ARIADNE_HOME, or .ariadne in the repository."""
        return cls(Path(environment.get("ARIADNE_HOME") or ROOT / ".ariadne"))

    @property
    def prefect(self) -> Path:
        return self.root / "prefect"

    @property
    def mlflow(self) -> Path:
        return self.root / "mlflow"

    @property
    def services(self) -> Path:
        return self.root / "services"

    @property
    def services_file(self) -> Path:
        return self.services / "services.json"

    @property
    def logs(self) -> Path:
        return self.services / "logs"

    @property
    def programs(self) -> Path:
        """One file per kept process."""
        return self.services / "conf.d"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def hosting(self) -> Path:
        return self.root / "hosting"

    @property
    def runtime(self) -> Path:
        """Sockets and what else must not outlive a boot.

        A socket's path has at most 107 bytes, so not in the home. /tmp and not XDG_RUNTIME_DIR:
        that one is deleted when its user logs out, and what we start stays.
        """
        digest = hashlib.sha256(str(self.root).encode()).hexdigest()
        return Path("/tmp") / f"ariadne-{os.getuid()}-{digest[:8]}"

    def create(self) -> Self:
        """Make every folder, readable by its owner only."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        inner = (self.prefect, self.mlflow, self.services, self.logs, self.programs)
        for folder in (*inner, self.runs, self.hosting, self.runtime):
            folder.mkdir(mode=0o700, exist_ok=True)
        found = self.runtime.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not ours or found.st_mode & 0o077:
            raise RuntimeError(
                f"{self.runtime} is not a private folder of this user; remove it and try again"
            )
        return self

    @contextmanager
    def locked(self, name: str) -> Generator[None]:
        """One caller at a time, over all processes of this home. Not re-entrant."""
        self.create()
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        with (self.runtime / f"{name}.lock").open("w") as file:
            while not take_lock(file):
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{file.name} was held for {_LOCK_TIMEOUT_S} s by another command on "
                        "this home; wait for it to end and try again"
                    )
                time.sleep(0.05)
            yield


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """ARIADNE_CACHE, or `ariadne` in the user's cache folder. Not created here."""
    if chosen := environment.get("ARIADNE_CACHE"):
        return Path(chosen).expanduser().resolve()
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(base) / "ariadne").resolve()


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(text)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def take_lock(file: IO[str]) -> bool:
    """Take the file's lock if nobody has it; it is given back when the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
