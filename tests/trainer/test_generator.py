"""Token-truth rollouts: what was sampled is what is trained on, however the text is spelled."""

from collections.abc import Callable

import pytest
import torch

from tests.trainer.episodes import (
    EOS,
    SOLUTION,
    SkyRLVLMGymGenerator,
    assert_well_formed,
    canonical,
    image_tokens,
    image_tokens_needed,
    make_generator,
    play,
    play_group,
    sampled,
    server_for,
    solving_script,
    spelled_out,
)
from tests.trainer.stand_in_server import BLOCK, StandInServer, pixels_of


def test_canonical_answers_give_what_skyrl_gives() -> None:
    script = solving_script()
    ours, theirs = server_for(*script), server_for(*script)
    output, expected = play(ours), play(theirs, SkyRLVLMGymGenerator)
    assert_well_formed(output, ours)
    for name in ("prompt_ids", "response_ids", "loss_mask", "reward", "rollout_logprobs"):
        assert getattr(output, name) == getattr(expected, name), name
    assert output.stop_reason == expected.stop_reason == "stop"
    assert output.env_metrics == expected.env_metrics
    assert output.env_metrics["success"] == 1.0
    assert torch.equal(output.pixel_values, expected.pixel_values)
    assert torch.equal(output.image_grid_thw, expected.image_grid_thw)
    assert len(output.image_grid_thw) == len(SOLUTION)
    for request, reference in zip(ours.requests, theirs.requests, strict=True):
        assert request["ids"] == reference["ids"]
        (sent,), (wanted,) = request["mm_features"], reference["mm_features"]
        for key in ("mm_hashes", "mm_placeholders"):
            assert sent[key] == wanted[key]
        pairs = zip(sent["kwargs_data"]["image"], wanted["kwargs_data"]["image"], strict=True)
        for data, reference_data in pairs:
            assert torch.equal(pixels_of(data), pixels_of(reference_data))


def test_another_spelling_is_kept_as_it_was_sampled() -> None:
    script = [spelled_out(SOLUTION[0]), *map(canonical, SOLUTION[1:])]
    assert len(script[0]) > len(canonical(SOLUTION[0]))
    server = server_for(*script)
    output = play(server)
    assert_well_formed(output, server)
    assert output.response_ids[: len(script[0])] == script[0]
    assert sampled(output) == [token for answer in script for token in answer]
    assert (output.env_metrics["success"], sum(output.reward)) == (1.0, 1.0)


def test_skyrls_own_generator_loses_image_tokens_over_another_spelling() -> None:
    """The reason why ours exists; once SkyRL passes this, ours may go."""
    output = play(
        server_for(spelled_out(SOLUTION[0]), *map(canonical, SOLUTION[1:])), SkyRLVLMGymGenerator
    )
    assert image_tokens(output) < image_tokens_needed(output)


def test_the_reward_sits_on_the_last_token_of_the_last_answer() -> None:
    output = play(server_for(*solving_script()))
    assert output.reward == [0.0] * (len(output.reward) - 1) + [1.0]
    assert (output.response_ids[-1], output.loss_mask[-1]) == (EOS, 1)


def test_observations_and_an_appended_end_of_turn_carry_no_loss() -> None:
    cut_off = [answer[:-1] for answer in map(canonical, SOLUTION)]
    server = server_for(*cut_off)
    output = play(server)
    assert_well_formed(output, server)
    whole = play(server_for(*solving_script()))
    assert output.response_ids == whole.response_ids
    assert sum(output.loss_mask) == sum(map(len, cut_off))
    assert (output.response_ids[-1], output.loss_mask[-1], output.reward[-1]) == (EOS, 0, 1.0)
    assert sampled(output) == [token for answer in cut_off for token in answer]
    scores = zip(output.rollout_logprobs, output.loss_mask, strict=True)
    assert {score for score, mask in scores if not mask} == {0.0}


@pytest.mark.parametrize("spell", [canonical, spelled_out])
def test_only_pictures_in_full_computed_blocks_go_without_pixels(
    spell: Callable[[str], list[int]],
) -> None:
    """Spelled out, the first answer moves the second picture across the end of a block."""
    script = [spell(SOLUTION[0]), *solving_script()[1:]]
    server = server_for(*script)
    output = play(server, cache_block_tokens=BLOCK)
    assert_well_formed(output, server)
    computed, seen = 0, []
    for request in server.requests:
        (features,) = request["mm_features"]
        places = features["mm_placeholders"]["image"]
        for place, data in zip(places, features["kwargs_data"]["image"], strict=True):
            begin, end = place["offset"], place["offset"] + place["length"]
            is_cached = end <= computed // BLOCK * BLOCK
            assert (pixels_of(data) is None) == is_cached
            seen.append((is_cached, begin // BLOCK < (end - 1) // BLOCK))
        computed = len(request["ids"])
    assert {is_cached for is_cached, _ in seen} == {True, False}
    assert any(is_split for _, is_split in seen) == (spell is spelled_out)
    reference = play(server_for(*script))
    assert torch.equal(output.pixel_values, reference.pixel_values)


def test_a_group_shares_its_renderings_and_the_next_batch_makes_new_ones() -> None:
    alone, server = server_for(*solving_script()), server_for(*solving_script())
    expected = play(alone)
    generator = make_generator(server)
    group = play_group(generator, 3)
    assert group["response_ids"] == [expected.response_ids] * 3
    assert len(server.renderings) == len(alone.renderings)
    assert sorted(server.finished) == ["maze_0", "maze_1", "maze_2"]
    play_group(generator, 1)
    assert len(server.renderings) == 2 * len(alone.renderings)


def seeds(server: StandInServer) -> set[int]:
    return {request["sampling_params"]["seed"] for request in server.requests}


def test_every_answer_has_a_seed_of_its_own_and_the_same_one_when_it_is_played_anew() -> None:
    first, again, other = (server_for(*solving_script()) for _ in range(3))
    play_group(make_generator(first), 3)
    play_group(make_generator(again), 3)
    play_group(make_generator(other, seed=2), 3)
    assert len(seeds(first)) == len(first.requests) > 3
    assert seeds(first) == seeds(again)
    assert not seeds(first) & seeds(other)
