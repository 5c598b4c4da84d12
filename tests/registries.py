"""A real registry on this machine, and a small base image that is made here."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tasks.ports import any_free
from tests.waiting import wait_until

BUSYBOX = Path("/usr/bin/busybox")


@contextmanager
def images_in(folder: Path) -> Iterator[None]:
    """Buildah keeps its images below `folder`, away from those of this machine."""
    settings = folder / "storage.conf"
    roots = f'graphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    settings.write_text(f'[storage]\ndriver = "vfs"\n{roots}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(settings))
        yield


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Debian's docker-registry on a free port of 127.0.0.1; its host and port."""
    if shutil.which("docker-registry") is None:
        raise RuntimeError("the tests need docker-registry: apt-get install docker-registry")
    port = any_free()
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
        f"storage: {{filesystem: {{rootdir: {folder / 'blobs'}}}, delete: {{enabled: true}}}}\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", str(config)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: answers(port))
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def push_base(host: str, folder: Path) -> str:
    """A base of nothing but a shell, pushed; its reference with its digest."""
    context = folder / "base"
    (context / "bin").mkdir(parents=True)
    shutil.copyfile(BUSYBOX, context / "bin" / "sh")
    (context / "bin" / "sh").chmod(0o755)
    (context / "Dockerfile").write_text("FROM scratch\nCOPY bin/ /bin/\n")
    return push(host, context, "base")


def push(host: str, context: Path, name: str) -> str:
    """Build the Dockerfile of the folder and push it; its reference with its digest."""
    tag, digest = f"{host}/{name}:1", context.with_suffix(".digest")
    for step in (
        ("build", "--isolation", "chroot", "--tag", tag, str(context)),
        ("push", "--tls-verify=false", "--digestfile", str(digest), tag, f"docker://{tag}"),
    ):
        buildah(*step)
    return f"{host}/{name}@{digest.read_text().strip()}"


def buildah(*step: str) -> str:
    """What it printed; its storage is where CONTAINERS_STORAGE_CONF says."""
    command = ["buildah", "--storage-driver", "vfs", *step]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
