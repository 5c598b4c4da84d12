"""A real registry on this machine, and a small base image that is made here."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tasks.ports import any_free
from tests.waiting import wait_until

BUSYBOX = Path("/usr/bin/busybox")


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
    tag, digest = f"{host}/base:1", folder / "base.digest"
    buildah = ("buildah", "--storage-driver", "vfs")
    for step in (
        ("build", "--isolation", "chroot", "--tag", tag, str(context)),
        ("push", "--tls-verify=false", "--digestfile", str(digest), tag, f"docker://{tag}"),
    ):
        subprocess.run([*buildah, *step], check=True, capture_output=True, timeout=120)
    return f"{host}/base@{digest.read_text().strip()}"
