"""What an image is made of, whichever way it is built: the code that runs in it, and the lock."""

import shutil
from pathlib import Path

from configs.digests import digest_of_files
from configs.loader import ROOT

TRAINER = Path("containers") / "trainer"
LOCK = TRAINER / "requirements.lock"
DOCKERFILE = TRAINER / "Dockerfile"
BUILDSPEC = TRAINER / "buildspec.yml"
PYTHON = "/opt/environment/bin/python"
APP = "/opt/ariadne"
"""Inside of an image that the Dockerfile makes."""


def code_files(root: Path = ROOT) -> list[Path]:
    """Everything that runs inside the image, and the lock of its environment."""
    files = [*(root / "configs").glob("*.py"), *(root / "containers").rglob("*.py")]
    page = (root / "containers" / "server" / "page").glob("*")
    return [*files, *page, root / LOCK]


def code_digest(root: Path = ROOT) -> str:
    return digest_of_files(code_files(root), root)


def copy_code(folder: Path, root: Path = ROOT) -> None:
    """Lay it out in `folder` as in the project."""
    for path in code_files(root):
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
