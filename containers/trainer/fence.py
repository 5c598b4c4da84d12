"""The right to write: only the newest attempt of a run may.

An attempt whose node was thought dead can come back to life after its successor has started.
Each write that counts is preceded by a look at the attempts that were taken; a newer one ends
this process. The numbers are files made once, so the look works on any shared file system.
"""

from pathlib import Path


class Superseded(SystemExit):
    """A newer attempt has begun; this one has written nothing since, and stops."""


class Fence:
    """The fence of one attempt."""

    def __init__(self, attempts: Path, number: int) -> None:
        self._attempts = attempts
        self._number = number

    def check(self) -> None:
        """Pass, or leave.

        Raises:
            Superseded: this attempt has a successor.
        """
        newest = max((int(file.stem) for file in self._attempts.glob("*.json")), default=0)
        if newest > self._number:
            raise Superseded(
                f"Error: attempt {self._number} is superseded by attempt {newest}: it stops here "
                "and leaves the run alone"
            )
