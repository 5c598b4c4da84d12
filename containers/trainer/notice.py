"""A notice of the end (SIGTERM: a spot machine goes, a node is drained) turned into a checkpoint.

The step at hand is finished and saved, whatever the interval, and the attempt ends. Machines
give a minute or two of notice; who kills sooner costs the step at hand, as any kill does.
"""

import signal
from types import FrameType

from loguru import logger


class Interrupted(SystemExit):
    """The attempt ends because it was told to, with its last step saved."""


class Notice:
    """Whether this process was told to end."""

    def __init__(self) -> None:
        self.is_given = False

    def listen(self) -> None:
        """Take SIGTERM from now on; Ray, whose own handler leaves at once, is connected before."""
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.is_given = True
        logger.warning("told to end: the step at hand is finished and saved first")

    def leave(self, step: int) -> None:
        """End the attempt if it was told to.

        Raises:
            Interrupted: it was.
        """
        if self.is_given:
            raise Interrupted(f"Error: interrupted by SIGTERM after step {step}, which is saved")
