"""A base for the trainer image whose installers are stand-ins that note what they were given."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.registries import BUSYBOX, push

_INSTALLERS = {
    "apt-get": """[ "$1" != install ] || [[ " $* " == *" --no-install-recommends "* ]]""",
    "useradd": "true",
    "python3.12": """
        [ "$1 $2" = "-m venv" ]
        mkdir -p "$3/bin"
        cp /usr/bin/pip "$3/bin/pip"
        cp /usr/bin/uv "$3/bin/uv\"""",
    "pip": """[[ "$*" == "install --no-cache-dir uv=="* ]]""",
    "uv": """
        last="${@: -1}"
        case "$*" in
          venv\\ *)
            mkdir -p "$last/bin"
            printf '#!/bin/bash\\necho this is ray\\n' > "$last/bin/ray"
            chmod 755 "$last/bin/ray"
            : > "$last/compiled" ;;
          pip\\ sync\\ *--require-hashes*) cp "$last" /opt/environment/locked ;;
          pip\\ install\\ *--require-hashes*) cp "$last" /opt/environment/compiled ;;
          *) exit 2 ;;
        esac""",
}
_COMMANDS = ("cp", "ln", "mkdir", "rm", "chmod")


def push_installers(host: str, folder: Path) -> str:
    """The reference of the base; its bash is this machine's, its commands are busybox's."""
    root = folder / "installers"
    for place in ("bin", "usr/bin", "usr/local/bin", "etc", "tmp"):
        (root / place).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for command in _COMMANDS:
        shutil.copy(BUSYBOX, root / "bin" / command)
    for path in ("/bin/bash", *_libraries("/bin/bash")):
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])
    shutil.copy("/bin/bash", root / "bin" / "sh")
    for name, script in _INSTALLERS.items():
        installer = root / "usr" / "bin" / name
        installer.write_text(f"#!/bin/bash\nset -e\n{script}\n")
        installer.chmod(0o755)
    # As Debian's: a login shell forgets the PATH that it was given.
    (root / "etc" / "profile").write_text("PATH=/usr/local/bin:/usr/bin:/bin\n")
    (root / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    return push(host, root, "installers")


def _libraries(program: str) -> list[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=10, check=True)
    return re.findall(r"(/\S+\.so\S*)", said.stdout)
