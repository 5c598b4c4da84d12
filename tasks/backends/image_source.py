"""What an image is made of, whichever way it is built: the code that runs in it, and the lock."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from configs.digests import digest_of_files
from configs.loader import ROOT

TRAINER = Path("containers") / "trainer"
DOCKERFILE = TRAINER / "Dockerfile"
BUILDSPEC = TRAINER / "buildspec.yml"
LOCKS = {"cpu": TRAINER / "requirements.lock", "cuda": TRAINER / "requirements-cuda.lock"}
FLASH_ATTENTION = TRAINER / "flash-attention.lock"
"""Compiled in the image, after its lock."""
PYTHON = "/opt/environment/bin/python"
APP = "/opt/ariadne"
"""Inside of an image that the Dockerfile makes."""


@dataclass(frozen=True)
class ImageSource:
    """The project's part of an image for one kind of device."""

    device: Literal["cpu", "cuda"] = "cpu"
    root: Path = ROOT

    @property
    def lock(self) -> Path:
        """Of the environment that the image has, below `root`."""
        return LOCKS[self.device]

    def files(self) -> list[Path]:
        """Everything that runs inside the image, and the locks of its environment."""
        configs, containers = self.root / "configs", self.root / "containers"
        page = (containers / "server" / "page").glob("*")
        locks = [self.lock, *([FLASH_ATTENTION] if self.device == "cuda" else [])]
        code = [*configs.glob("*.py"), *containers.rglob("*.py"), *page]
        return [*code, *(self.root / lock for lock in locks)]

    def digest(self) -> str:
        return digest_of_files(self.files(), self.root)

    def copy_to(self, folder: Path) -> None:
        """Lay it out in `folder` as in the project."""
        for path in self.files():
            target = folder / path.relative_to(self.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
