"""What the player reads and how its reply is understood: one place for training and evaluation.

The opening message carries the rules, the picture and the first question; each later message
carries the feedback on the last action and the new picture. Messages are plain OpenAI chat
messages, so the trainer, the evaluation and a user of the served adapter say the same thing.
"""

import base64
import io
import re
from typing import Any

import numpy as np
from PIL import Image

from configs.mazes import MazeLayout
from containers.trainer.maze import GREY, Frame

Message = dict[str, Any]
"""One chat message: {"role": ..., "content": [parts]}."""

RULES = (
    "This is a maze of {height} by {width} cells: grey is wall, white is floor. "
    "You are the blue disc. Walk to the red square and stop there.\n"
    "Answer with one action:\n"
    "('move', 0) goes right\n('move', 1) goes up\n('move', 2) goes left\n('move', 3) goes down\n"
    "('stop', 'stop') ends the walk\n"
)

FEEDBACK = {
    "moved": "You moved.",
    "wall": "A wall is in the way.",
    "unparsable": "That is no action.",
    "stopped": "You stopped.",
}
"""What the player is told after each outcome of `maze.Turn`."""

_TUPLE = re.compile(r"\([^()]*\)")
_NAMED = re.compile(r"""\(\s*(['"])\w*\1\s*,""")


def opening(layout: MazeLayout, frame: Frame, frame_multiple_px: int) -> Message:
    """The first message of an episode."""
    rules = RULES.format(height=layout.height, width=layout.width)
    return _message(frame, frame_multiple_px, rules)


def observation(outcome: str, frame: Frame, frame_multiple_px: int) -> Message:
    """The message after an action with that outcome."""
    return _message(frame, frame_multiple_px, FEEDBACK[outcome])


def find_action(reply: str) -> str:
    """The last tuple of a reply that starts with a name; the whole reply where there is none."""
    tuples = [text for text in _TUPLE.findall(reply) if _NAMED.match(text)]
    return tuples[-1] if tuples else reply


def pad_frame(frame: Frame, multiple_px: int) -> Frame:
    """Extend the frame with wall on the right and below to a multiple of `multiple_px`.

    Vision towers cut pictures into patches and resize what does not fit: padding keeps the cells
    aligned with the patches and the picture sharp. 1 leaves the frame as it is.
    """
    height, width, _ = frame.shape
    grown = np.empty((height + -height % multiple_px, width + -width % multiple_px, 3), np.uint8)
    grown[:] = GREY
    grown[:height, :width] = frame
    return grown


def png_data_uri(frame: Frame) -> str:
    """The frame as a `data:image/png;base64,...` address."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _message(frame: Frame, frame_multiple_px: int, text: str) -> Message:
    picture = png_data_uri(pad_frame(frame, frame_multiple_px))
    return {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": picture}},
            {"type": "text", "text": text},
        ],
    }
