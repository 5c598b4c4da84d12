"""Samples of what the trainer wrote: the newest step, sums over all steps, the checkpoints."""

from collections.abc import Iterator

from tasks.metrics import catalogue as m
from tasks.metrics.catalogue import Metric, Sample
from tasks.metrics.followed import SUCCESS, FollowedRun, phases_of
from tasks.watchdog import allowed_s

_VALUES: tuple[tuple[Metric, str], ...] = (
    (m.SUCCESS, SUCCESS),
    (m.REWARD, "reward/avg_raw_reward"),
    (m.ADVANTAGE, "loss/avg_raw_advantages_abs"),
    (m.ENTROPY, "policy/policy_entropy"),
    (m.KL, "policy/policy_kl"),
    (m.CLIP, "policy/loss_metrics/clip_ratio"),
    (m.GRADIENT, "policy/grad_norm"),
    (m.LOSS, "policy/policy_loss"),
    (m.LEARNING_RATE, "policy/policy_lr"),
    (m.GAP, "policy/rollout_train_logprobs_abs_diff_mean"),
    (m.GAP_MAX, "policy/rollout_train_logprobs_abs_diff_max"),
    (m.RESPONSE, "generate/avg_assistant_tokens"),
    (m.RESPONSE_MAX, "generate/max_assistant_tokens"),
    (m.TURNS, "environment/turns"),
    (m.WALL_HITS, "environment/wall_hits"),
    (m.UNPARSABLE, "environment/unparsable"),
    (m.STEP_S, "timing/step"),
    (m.DEVICE_SPEED, "trainer/tokens_per_second_per_gpu"),
)
"""Metric and the trainer's own name; what a step did not measure has no sample."""


def training_samples(followed: FollowedRun) -> Iterator[Sample]:
    """Everything that metrics.jsonl and the checkpoints say."""
    run = followed.run
    name = (run.run_id,)
    yield Sample(m.STEPS_PLANNED, name, run.config.train.steps)
    yield Sample(m.STEPS_TRAINED, name, followed.num_trained)
    yield Sample(m.STEPS_REPEATED, name, followed.num_repeated)
    yield Sample(m.EPISODES, name, followed.episodes)
    yield Sample(m.ANSWERS, name, followed.answers)
    yield Sample(m.TOKENS, name, followed.tokens)
    for phase, seconds in followed.phases_s.items():
        yield Sample(m.PHASES_S, (*name, phase), seconds)
    if followed.attempts:
        yield Sample(m.PROGRESS, name, _progress_s(followed))
        yield Sample(m.STALL_LIMIT, name, _limit_s(followed))
    yield from _newest_step(followed)
    yield from _checkpoints(followed)


def _newest_step(followed: FollowedRun) -> Iterator[Sample]:
    line, name = followed.last, (followed.run.run_id,)
    if line is None:
        return
    yield Sample(m.STEP, name, line.step)
    yield Sample(m.SUCCESS_RECENT, name, followed.success_recent)
    yield Sample(m.SUCCESS_BEST, name, followed.success_best)
    for metric, key in _VALUES:
        if key in line.values:
            yield Sample(metric, name, line.values[key])
    pass_at_k = f"reward/avg_pass_at_{followed.run.config.train.samples_per_maze}"
    if pass_at_k in line.values:
        yield Sample(m.PASS_AT_K, name, line.values[pass_at_k])
    for phase, seconds in phases_of(line).items():
        yield Sample(m.PHASE_S, (*name, phase), seconds)


def _checkpoints(followed: FollowedRun) -> Iterator[Sample]:
    name = (followed.run.run_id,)
    committed = followed.checkpoint
    step = committed.step if committed else 0
    trained = followed.last.step if followed.last else 0
    yield Sample(m.CHECKPOINTS, name, followed.num_checkpoints)
    yield Sample(m.SINCE_CHECKPOINT, name, max(0, trained - step))
    if committed is None:
        return
    yield Sample(m.CHECKPOINT_STEP, name, step)
    yield Sample(m.CHECKPOINT_TIME, name, followed.checkpoint_time_s)
    yield Sample(m.CHECKPOINT_BYTES, name, sum(committed.sizes.values()))
    if followed.checkpoint_took_s is not None:
        yield Sample(m.CHECKPOINT_S, name, followed.checkpoint_took_s)


def _progress_s(followed: FollowedRun) -> float:
    stepped = followed.last.wall_time_ms / 1000 if followed.last else 0.0
    started = followed.attempts[-1].started.timestamp()
    return max(started, stepped, followed.checkpoint_time_s)


def _limit_s(followed: FollowedRun) -> float:
    """As the watchdog has it: an attempt may take its time to the first step."""
    if followed.attempts[-1].number not in followed.trained:
        return followed.run.config.train.first_step_timeout_s
    return allowed_s(followed.took_s)
