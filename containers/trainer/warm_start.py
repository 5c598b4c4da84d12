"""Remake the tiny base model: supervised learning on expert answers along noisy walks.

The result stands in for the VisGym SFT checkpoint of the published run, so it is stopped early,
where it solves about as many of the 64 test mazes as that checkpoint does (28, 43.75 %) while
its answers are still uncertain enough to explore from. The test mazes are only played to see
when to stop; no layout of theirs is ever trained on.

    python -m containers.trainer.warm_start --mazes configs/mazes/tiny-64.json --out FOLDER
"""

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from configs.mazes import DIRECTIONS, Cell, MazeLayout, MazeSet, load_maze_set
from containers.trainer.conversation import FEEDBACK, RULES, find_action, pad_frame
from containers.trainer.maze import Frame, MazeGame
from containers.trainer.tiny_model import (
    ACTIONS,
    FRAME_MULTIPLE_PX,
    make_config,
    make_model,
    make_processor,
    make_tokenizer,
    save_checkpoint,
)
from containers.trainer.wilson import layout_from_seed

CELL_PX, MAX_TURNS = 8, 18
IGNORED = -100
"""Label of a token that is not trained on."""


@dataclass(frozen=True)
class Walk:
    """One episode as tokens: `labels[i]` is the answer wanted for position i + 1."""

    input_ids: list[int]
    labels: list[int]
    frames: list[Frame]


class Speaker:
    """Turns messages into token ids and frames into patches, as the processor would."""

    def __init__(self, processor: Qwen3VLProcessor) -> None:
        self.tokenizer = processor.tokenizer
        self.processor = processor
        self.action_ids = [self.encode(action) for action in ACTIONS]
        self.end = self.encode("<|im_end|>")

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def message(self, text: str) -> list[int]:
        """The ids of a user message with one picture, and of the assistant's header."""
        pads = "<|image_pad|>" * 4
        return self.encode(
            f"<|im_start|>user\n<|vision_start|>{pads}<|vision_end|>{text}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )

    def pixels(self, frames: list[Frame]) -> dict[str, Tensor]:
        """`pixel_values` (patches, 1536) and `image_grid_thw` (frames, 3)."""
        pictures = [Image.fromarray(pad_frame(frame, FRAME_MULTIPLE_PX)) for frame in frames]
        return self.processor.image_processor(images=pictures, return_tensors="pt")


def noisy_walk(
    layout: MazeLayout,
    speaker: Speaker,
    draw: random.Random,
    *,
    noise: float,
    stop_share: float,
    max_turns: int,
) -> Walk:
    """Walk towards the target, at times anywhere else; every turn asks for the teacher's answer.

    `noise` is the share of turns that are played at random, `stop_share` that of the arrivals at
    which the teacher stops; at the others it walks on.
    """
    game = MazeGame(layout, CELL_PX)
    ids = speaker.message(RULES.format(height=layout.height, width=layout.width))
    labels, frames = [IGNORED] * len(ids), [game.frame()]
    for _ in range(max_turns):
        wanted = teacher_action(layout, game.agent, stop_share, draw)
        played = draw.randrange(4) if draw.random() < noise else wanted
        labels[-1] = speaker.action_ids[wanted][0]
        ids += speaker.action_ids[played] + speaker.end
        labels += [*speaker.action_ids[played][1:], *speaker.end, IGNORED]
        turn = game.step(ACTIONS[played])
        if turn.terminated:
            break
        following = speaker.encode("\n") + speaker.message(FEEDBACK[turn.outcome])
        ids += following
        labels += [IGNORED] * len(following)
        frames.append(game.frame())
    return Walk(ids, labels, frames)


def teacher_action(layout: MazeLayout, agent: Cell, stop_share: float, draw: random.Random) -> int:
    """Index into ACTIONS of the teacher's answer for a player at `agent`."""
    path = layout.model_copy(update={"start": agent}).shortest_path()
    assert path is not None
    if path:
        return path[0]
    if draw.random() < stop_share:
        return len(ACTIONS) - 1
    row, column = agent
    around = enumerate(DIRECTIONS)
    return draw.choice([i for i, (r, c) in around if layout.is_floor((row + r, column + c))])


def collate(walks: list[Walk], speaker: Speaker) -> tuple[dict[str, Tensor], Tensor]:
    """Right-padded model inputs (batch, longest) and labels of the same shape."""
    longest = max(len(walk.input_ids) for walk in walks)
    pad = speaker.tokenizer.pad_token_id

    def rows(lists: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (longest - len(row)) for row in lists])

    input_ids = rows([walk.input_ids for walk in walks], pad)
    images = speaker.pixels([frame for walk in walks for frame in walk.frames])
    image_id = speaker.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    inputs = {
        "input_ids": input_ids,
        "attention_mask": rows([[1] * len(walk.input_ids) for walk in walks], 0),
        "mm_token_type_ids": (input_ids == image_id).int(),
        **images,
    }
    return inputs, rows([walk.labels for walk in walks], IGNORED)


@torch.no_grad()
def play_greedily(
    model: Qwen3VLForConditionalGeneration, speaker: Speaker, mazes: MazeSet
) -> tuple[int, int, float]:
    """Mazes solved, mazes in which the target was reached, mean entropy (nats) of an answer."""
    model.eval()
    games = [MazeGame(maze, CELL_PX) for maze in mazes.mazes]
    rules = speaker.message(RULES.format(height=mazes.height, width=mazes.width))
    walks = {i: Walk(list(rules), [], [game.frame()]) for i, game in enumerate(games)}
    solved, arrived, entropies = 0, set(), []
    for _ in range(MAX_TURNS):
        order = list(walks)
        inputs, _ = collate([walks[i] for i in order], speaker)
        logits = model(**inputs).logits
        last = inputs["attention_mask"].sum(1) - 1
        logits = logits[torch.arange(len(order)), last]
        entropies.append(torch.distributions.Categorical(logits=logits).entropy().mean().item())
        for i, token in zip(order, logits.argmax(-1).tolist(), strict=True):
            turn = games[i].step(find_action(speaker.tokenizer.decode([token])))
            if turn.agent == mazes.mazes[i].target:
                arrived.add(i)
            if turn.terminated:
                solved += turn.reward > 0
                del walks[i]
                continue
            walks[i].input_ids.extend(
                [
                    *(token, *speaker.end, *speaker.encode("\n")),
                    *speaker.message(FEEDBACK[turn.outcome]),
                ]
            )
            walks[i].frames.append(games[i].frame())
        if not walks:
            break
    model.train()
    return solved, len(arrived), sum(entropies) / len(entropies)


def train(arguments: argparse.Namespace) -> None:
    """Train until the wanted score, then save the checkpoint and the curve beside it."""
    torch.set_num_threads(arguments.threads)
    draw = random.Random(arguments.seed)
    mazes = load_maze_set(arguments.mazes)
    held_out = {maze.identity for maze in mazes.mazes}
    processor = make_processor(make_tokenizer())
    speaker = Speaker(processor)
    model = make_model(make_config(processor.tokenizer), arguments.seed).train()
    if arguments.start:
        model.load_state_dict(
            Qwen3VLForConditionalGeneration.from_pretrained(arguments.start).state_dict()
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.01)
    warm_up, curve, began = 100, [], time.monotonic()
    for step in range(1, arguments.max_steps + 1):
        for group in optimizer.param_groups:
            left = 1 - (step - 1) / arguments.max_steps
            group["lr"] = arguments.lr * min(1.0, step / warm_up, left if arguments.decay else 1.0)
        walks: list[Walk] = []
        while len(walks) < arguments.batch:
            layout = layout_from_seed(1000 + draw.randrange(10**6), mazes.height, mazes.width)
            if layout.identity not in held_out:
                walks.append(
                    noisy_walk(
                        layout,
                        speaker,
                        draw,
                        noise=arguments.noise,
                        stop_share=arguments.stop_share,
                        max_turns=MAX_TURNS,
                    )
                )
        inputs, labels = collate(walks, speaker)
        logits = model(**inputs).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % arguments.every == 0:
            solved, arrived, entropy = play_greedily(model, speaker, mazes)
            score = {"solved": solved, "arrived": arrived, "entropy": round(entropy, 3)}
            curve.append({"step": step, "loss": round(loss.item(), 4), **score})
            say(json.dumps({**curve[-1], "s": round(time.monotonic() - began)}))
            if arguments.keep_all:
                save_checkpoint(model, processor, arguments.out / f"step-{step}-{solved}")
            if abs(solved - arguments.wanted) <= 1 and not arguments.keep_all:
                break
    save_checkpoint(model, processor, arguments.out)
    (arguments.out / "warm_start.json").write_text(json.dumps(curve, indent=1) + "\n")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Remake the tiny base model")
    parser.add_argument("--mazes", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wanted", type=int, default=28, help="mazes the base should solve")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=Path, help="go on from this checkpoint")
    parser.add_argument("--noise", type=float, default=0.25, help="share of random moves")
    parser.add_argument("--stop-share", type=float, default=1.0, help="arrivals with a stop")
    parser.add_argument("--decay", action="store_true", help="learning rate falls to 0")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--max-steps", type=int, default=6000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep-all", action="store_true", help="save every evaluated step")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
