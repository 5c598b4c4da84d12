"""What the player is shown and how its reply is read."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from configs.mazes import MazeLayout
from containers.trainer.conversation import (
    FEEDBACK,
    Message,
    find_action,
    observation,
    opening,
    pad_frame,
)
from containers.trainer.maze import GREY, Frame, MazeGame

CORRIDOR = MazeLayout(
    seed=0,
    grid=("1111111", "1000001", "1111111", "1000001", "1111111"),
    start=(1, 1),
    target=(1, 3),
)


def picture_in(message: Message) -> Frame:
    (url,) = [part["image_url"]["url"] for part in message["content"] if "image_url" in part]
    kind, _, data = url.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def text_in(message: Message) -> str:
    return "".join(part["text"] for part in message["content"] if part["type"] == "text")


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("('move', 0)", "('move', 0)"),
        ("I tried ('move', 0), so now ('move', 3).", "('move', 3)"),
        ("('move', 1) or rather ('stop', 'stop')", "('stop', 'stop')"),
        ("Thought (short): go on.\n('move', 2)\n", "('move', 2)"),
        ("((('move', 1)))", "('move', 1)"),
        (
            "('move', 1) (I hope)",
            "('move', 1)",
        ),
        ("move right", "move right"),
        ("('move', 1", "('move', 1"),
        ("", ""),
    ],
)
def test_the_last_tuple_of_a_reply_is_its_action(reply: str, action: str) -> None:
    assert find_action(reply) == action


def test_a_reply_without_a_tuple_is_played_as_no_action() -> None:
    assert MazeGame(CORRIDOR).step(find_action("I give up")).outcome == "unparsable"


@pytest.mark.parametrize(
    ("multiple", "height", "width"), [(1, 40, 56), (8, 40, 56), (32, 64, 64), (28, 56, 56)]
)
def test_a_frame_grows_to_the_multiple_with_wall_on_the_right_and_below(
    multiple: int, height: int, width: int
) -> None:
    frame = MazeGame(CORRIDOR, cell_px=8).frame()
    padded = pad_frame(frame, multiple)
    assert padded.shape == (height, width, 3)
    assert padded.dtype == np.uint8
    assert np.array_equal(padded[:40, :56], frame)
    assert (padded[40:] == GREY).all()
    assert (padded[:, 56:] == GREY).all()


def test_the_opening_shows_the_maze_and_states_its_rules() -> None:
    frame = MazeGame(CORRIDOR, cell_px=8).frame()
    message = opening(CORRIDOR, frame, 32)
    assert message["role"] == "user"
    assert np.array_equal(picture_in(message), pad_frame(frame, 32))
    text = text_in(message)
    assert "5 by 7 cells" in text
    for action in ("('move', 0)", "('move', 1)", "('move', 2)", "('move', 3)", "('stop', 'stop')"):
        assert action in text


def test_every_outcome_of_the_game_has_its_feedback() -> None:
    for action in ("('move', 0)", "('move', 1)", "jump", "('stop', 'stop')"):
        game = MazeGame(CORRIDOR, cell_px=8)
        outcome = game.step(action).outcome
        message = observation(outcome, game.frame(), 1)
        assert text_in(message) == FEEDBACK[outcome]
        assert np.array_equal(picture_in(message), game.frame())
    assert len(set(FEEDBACK.values())) == len(FEEDBACK) == 4
