"""The one folder in which a machine keeps services, runs and hosting, and the shared cache."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from configs.loader import ROOT


@dataclass(frozen=True)
class Home:
    """Paths below one home folder. `Home.from_environment()` is the one of this process."""

    path: Path
    cache: Path
    """Environments and images by content: shared by all homes of this user."""

    @classmethod
    def from_environment(cls) -> "Home":
        """ARIADNE_HOME (default: .ariadne in the project), ARIADNE_CACHE (default: the user's)."""
        user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = cls(
            Path(os.environ.get("ARIADNE_HOME") or ROOT / ".ariadne").resolve(),
            Path(os.environ.get("ARIADNE_CACHE") or user_cache / "ariadne").resolve(),
        )
        for folder in (home.path, home.cache, home.services, home.logs, home.runs, home.hosting):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home

    @property
    def services(self) -> Path:
        return self.path / "services"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def hosting(self) -> Path:
        return self.path / "hosting"

    @property
    def runtime(self) -> Path:
        """Sockets and Ray's session: a short path, since socket addresses end at 108 bytes."""
        name = hashlib.sha256(str(self.path).encode()).hexdigest()[:8]
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        return Path(base) / f"ariadne-{os.getuid()}-{name}"

    def environment(self) -> dict[str, str]:
        """Variables that mark every process of this home and let it find the home again."""
        return {"ARIADNE_HOME": str(self.path), "ARIADNE_CACHE": str(self.cache)}
