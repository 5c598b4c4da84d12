"""Token-truth rollouts at their limits: forbidden tokens, silence, too long episodes."""

import pytest

from containers.trainer.conversation import observation, opening
from containers.trainer.generator import VISION_TOKENS
from containers.trainer.maze import MazeGame
from tests.trainer.episodes import (
    CONFIG,
    EOS,
    MAZE,
    SOLUTION,
    VOCABULARY,
    assert_well_formed,
    canonical,
    play,
    server_for,
)


@pytest.mark.parametrize("token", [name for name in VISION_TOKENS if name in VOCABULARY])
@pytest.mark.parametrize("said_before", [[], [VOCABULARY["("]]])
def test_a_vision_token_in_an_answer_ends_the_episode_unrewarded(
    token: str, said_before: list[int]
) -> None:
    answer = [*said_before, VOCABULARY[token], *canonical(SOLUTION[1])]
    server = server_for(canonical(SOLUTION[0]), answer, canonical(SOLUTION[1]))
    output = play(server)
    assert_well_formed(output, server)
    assert output.stop_reason == "vision_token"
    assert output.response_ids[-len(said_before) - 1 :] == [*said_before, EOS]
    assert output.loss_mask[-len(said_before) - 1 :] == [1] * len(said_before) + [0]
    assert set(output.reward) == {0.0}
    assert len(server.requests) == 2
    assert output.env_metrics["success"] == 0.0


@pytest.mark.parametrize(("silence", "counts"), [([], 0), ([EOS], 1)])
def test_saying_nothing_costs_a_turn_and_the_conversation_stays_well_formed(
    silence: list[int], counts: int
) -> None:
    server = server_for(silence, *map(canonical, SOLUTION))
    output = play(server)
    assert_well_formed(output, server)
    assert (output.env_metrics["unparsable"], output.env_metrics["success"]) == (1.0, 1.0)
    assert output.loss_mask[0] == counts
    game = MazeGame(MAZE, CONFIG.mazes.cell_px)
    multiple = CONFIG.mazes.frame_multiple_px
    conversation = [
        opening(MAZE, game.frame(), multiple),
        {"role": "assistant", "content": ""},
        observation("unparsable", game.frame(), multiple),
    ]
    assert server.requests[1]["ids"] == server.render(conversation)["token_ids"]


def test_an_episode_that_outgrows_the_model_ends_with_reason_length() -> None:
    server = server_for(*[canonical("('move', 9)")] * CONFIG.mazes.max_turns)
    output = play(server, max_model_len=128)
    assert_well_formed(output, server)
    limit = 128 - CONFIG.train.max_action_tokens
    assert output.stop_reason == "length"
    assert max(len(request["ids"]) for request in server.requests) <= limit
    assert len(output.prompt_ids + output.response_ids) > limit
    assert set(output.reward) == {0.0}
