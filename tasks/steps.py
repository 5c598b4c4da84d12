"""The steps of a run as the trainer writes them: read once, then only what is new."""

from collections.abc import Iterator
from pathlib import Path

from configs.jobs import MetricsLine


class Steps:
    """Follows metrics.jsonl, which only grows."""

    def __init__(self, metrics: Path) -> None:
        self._metrics = metrics
        self._read_to = 0
        """Bytes up to the end of the last whole line that was read."""

    def read(self) -> Iterator[MetricsLine]:
        """The lines since the last call, in the order they were written, one at a time.

        A torn line is left out. A step that was trained again comes again, and its later line is
        the one that counts.
        """
        if not self._metrics.is_file() or self._metrics.stat().st_size == self._read_to:
            return
        with self._metrics.open("rb") as file:
            file.seek(self._read_to)
            for text in file:
                if not text.endswith(b"\n"):
                    return  # being written
                self._read_to += len(text)
                if line := _parse(text):
                    yield line


def _parse(text: bytes) -> MetricsLine | None:
    try:
        return MetricsLine.model_validate_json(text)
    except ValueError:  # torn by a crash; whoever went on has ended the line
        return None
