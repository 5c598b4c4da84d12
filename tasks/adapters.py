"""Published adapters: what a stage uses is what its manifest says, or it is not used."""

from pathlib import Path

from configs.digests import digest_of, digest_of_file
from configs.jobs import AdapterManifest


def read_intact(folder: Path) -> AdapterManifest | None:
    """The manifest of an adapter all of whose files are as they were published, or None."""
    try:
        manifest = AdapterManifest.model_validate_json((folder / "manifest.json").read_text())
        found = {name: digest_of_file(folder / name) for name in manifest.files}
    except (FileNotFoundError, ValueError):
        return None
    return manifest if found == manifest.files and digest_of(found) == manifest.digest else None
