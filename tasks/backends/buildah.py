"""An OCI image of the jobs, built by buildah without a daemon and pushed to a registry.

It is named by the digest of its content, so the same content is built once; from then on it goes by
the digest that the registry gave it. The content's digest is also a label of the image: a tag
that somebody has moved to other content is not trusted.
"""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from configs.digests import digest_of, digest_of_file
from configs.image import RegistryConfig
from tasks.backends.image_source import APP, DOCKERFILE, PYTHON, ImageSource
from tasks.backends.protocols import Image
from tasks.words import last_lines

CONTENT_LABEL = "io.ariadne.content-digest"
_ASK_TIMEOUT_S = 60
_ABSENT = ("manifest unknown", "name unknown", "not found")


class Buildah:
    """Implements `ImageBuilder` with buildah and skopeo."""

    def __init__(self, config: RegistryConfig, source: ImageSource) -> None:
        self._config = config
        self._source = source
        self._dockerfile = source.root / DOCKERFILE

    def digest(self) -> str:
        dockerfile = digest_of_file(self._dockerfile)
        return digest_of([self._source.digest(), dockerfile, self._config.base])

    def find(self, digest: str) -> Image | None:
        """The image of this content in the registry.

        Raises:
            RuntimeError: the registry does not answer, or the tag is of other content.
        """
        try:
            said = _run(
                ["skopeo", "inspect", *self._tls(), f"docker://{self._tag(digest)}"],
                _ASK_TIMEOUT_S,
            )
        except Failed as error:
            if any(word in error.words for word in _ABSENT):
                return None
            raise RuntimeError(
                f"the registry {self._config.host} does not tell of {self._tag(digest)}: "
                f"{error}; look whether it is up and `skopeo login` was done"
            ) from None
        found = json.loads(said)
        label = (found.get("Labels") or {}).get(CONTENT_LABEL)
        if label != digest:
            raise RuntimeError(
                f"{self._tag(digest)} is of other content ({label or 'not built by us'}): remove "
                "that tag from the registry, then start the flow again"
            )
        return self._image(digest, found["Digest"])

    def build(self, digest: str, *, force: bool) -> Image:
        """Build and push it, unless it is there and `force` is not set.

        Raises:
            RuntimeError: it is not the image of today's code, or a step failed, with its last
                words. A push that was cut off leaves no tag.
        """
        if digest != self.digest():
            raise RuntimeError(
                f"image {digest[:12]} cannot be made again, since the code has changed: go back "
                "to the code of then, or start a new run"
            )
        if not force and (known := self.find(digest)):
            return known
        tag = self._tag(digest)
        with TemporaryDirectory(prefix="ariadne-image-") as folder:
            context, digest_file = Path(folder) / "context", Path(folder) / "digest"
            self._source.copy_to(context)
            build = ["build", "--isolation", "chroot", "--layers", "--format", "oci"]
            lock = self._source.lock.name
            arguments = {"BASE": self._config.base, "LOCK": lock, "CONTENT_DIGEST": digest}
            build += [f"--build-arg={name}={value}" for name, value in arguments.items()]
            build += ["--file", str(self._dockerfile), "--tag", tag, *self._tls()]
            push = ["push", *self._tls(), "--digestfile", str(digest_file), tag, f"docker://{tag}"]
            try:
                for step in ([*build, str(context)], push):
                    _run(
                        ["buildah", "--storage-driver", "vfs", *step], self._config.build_timeout_s
                    )
            except Failed as error:
                raise RuntimeError(f"image {digest[:12]} was not built: {error}") from None
            return self._image(digest, digest_file.read_text().strip())

    def _image(self, digest: str, manifest: str) -> Image:
        reference = f"{self._config.repository}@{manifest}"
        return Image(digest=digest, python=PYTHON, app=APP, reference=reference)

    def _tag(self, digest: str) -> str:
        return f"{self._config.repository}:{digest[:40]}"

    def _tls(self) -> list[str]:
        return ["--tls-verify=false"] if self._config.is_local else []


class Failed(Exception):
    """A program that did not do its work; says which and its last words."""

    def __init__(self, program: str, words: str) -> None:
        super().__init__(f"{program}: {' '.join(last_lines(words, 4)) or 'it said nothing'}")
        self.words = words


def _run(command: Sequence[str], timeout_s: int) -> str:
    """What it prints.

    Raises:
        Failed: it failed, took too long (it is ended with all it started) or is not installed.
    """
    name = " ".join(word for word in command[:4] if not word.startswith("-"))
    try:
        process = subprocess.Popen(
            command, stdout=-1, stderr=-1, stdin=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise Failed(name, f"{command[0]} is not installed (Debian: {command[0]})") from None
    try:
        said, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Failed(name, f"it took longer than {timeout_s} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        raise Failed(name, complaints or said)
    return said
