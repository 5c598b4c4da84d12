"""Every metric of the exporter: its name, kind, labels, and the sentence that explains it.

Names have the base unit at their end, as Prometheus wants it. The label `run` takes the newest
runs only, every other label a fixed set of values, so the number of series is bounded.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One family. A counter's name ends with `_total`."""

    name: str
    kind: Literal["gauge", "counter"]
    explanation: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """A value now. `labels` are the values of the metric's labels, in their order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


CATALOGUE: list[Metric] = []


def _metric(name: str, explanation: str, *labels: str) -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    metric = Metric(f"ariadne_{name}", kind, explanation, labels)
    CATALOGUE.append(metric)
    return metric


def _of_run(name: str, explanation: str, *labels: str) -> Metric:
    return _metric(name, explanation, "run", *labels)


# Training: the values of the newest step.
STEP = _of_run("train_step", "Newest training step.")
STEPS_PLANNED = _of_run("train_steps_planned", "Training steps the run shall have.")
STEPS_TRAINED = _of_run("train_steps_trained_total", "Steps trained, those trained anew included.")
STEPS_REPEATED = _of_run("train_steps_repeated_total", "Steps trained anew after a failure.")
PROGRESS = _of_run(
    "train_progress_timestamp_seconds", "When an attempt, a step or a checkpoint was last new."
)
STALL_LIMIT = _of_run(
    "train_stall_limit_seconds", "How long the watchdog waits for the next step, by the last ones."
)
SUCCESS = _of_run("train_success_ratio", "Share of a step's episodes that reached the target.")
SUCCESS_RECENT = _of_run(
    "train_success_recent_ratio", "Mean success of the last steps, five of a long run."
)
SUCCESS_BEST = _of_run("train_success_best_ratio", "Best such mean so far.")
PASS_AT_K = _of_run("train_pass_at_k_ratio", "Share of mazes that one sample of a group solved.")
REWARD = _of_run("train_reward", "Mean reward of a step's episodes.")
ADVANTAGE = _of_run("train_advantage_abs", "Mean absolute advantage; 0 teaches nothing.")
ENTROPY = _of_run("train_entropy_nats", "Entropy of the policy, per token.")
KL = _of_run("train_kl_nats", "KL to the base model, per token; needs a KL coefficient.")
CLIP = _of_run("train_clip_ratio", "Share of tokens whose update was clipped.")
GRADIENT = _of_run("train_gradient_norm", "Norm of the gradient before it is clipped.")
LOSS = _of_run("train_policy_loss", "Policy loss.")
LEARNING_RATE = _of_run("train_learning_rate", "Learning rate.")
GAP = _of_run(
    "train_logprob_gap_nats", "Mean gap between trainer's and server's log-probabilities."
)
GAP_MAX = _of_run("train_logprob_gap_max_nats", "Widest such gap of one token.")
RESPONSE = _of_run("train_response_tokens", "Mean tokens that the model said in an episode.")
RESPONSE_MAX = _of_run("train_response_max_tokens", "Most tokens it said in an episode.")
TURNS = _of_run("train_turns", "Mean turns of an episode.")
WALL_HITS = _of_run("train_wall_hits", "Mean steps into a wall in an episode.")
UNPARSABLE = _of_run("train_unparsable_answers", "Mean answers of an episode that are no action.")
STEP_S = _of_run("train_step_duration_seconds", "How long the newest step took.")
PHASE_S = _of_run("train_phase_duration_seconds", "Its phases.", "phase")
PHASES_S = _of_run("train_phase_seconds_total", "Time in each phase over all steps.", "phase")
DEVICE_SPEED = _of_run(
    "train_device_tokens_per_second", "Tokens trained on per second and device in the newest step."
)
EPISODES = _of_run("rollout_episodes_total", "Episodes played in training.")
ANSWERS = _of_run("rollout_turns_total", "Answers given in training.")
TOKENS = _of_run("rollout_tokens_total", "Tokens that the model said in training.")

# Checkpoints.
CHECKPOINT_STEP = _of_run("checkpoint_step", "Step of the newest committed checkpoint.")
CHECKPOINT_TIME = _of_run("checkpoint_timestamp_seconds", "When it was committed.")
CHECKPOINT_BYTES = _of_run("checkpoint_bytes", "Its size.")
CHECKPOINT_S = _of_run("checkpoint_duration_seconds", "How long writing the newest one took.")
SINCE_CHECKPOINT = _of_run("checkpoint_steps_since", "Steps that a failure now would cost.")
CHECKPOINTS = _of_run("checkpoints_kept", "Committed checkpoints on the disk.")

# Pipeline.
RUN_INFO = _of_run(
    "run_info", "Always 1; says what the run is.", "profile", "device", "base", "image", "mazes"
)
ACTIVE = _of_run("run_active", "1 while a flow works on the run.")
GAVE_UP = _of_run("run_gave_up", "1 when training has failed and no flow works on the run.")
STAGE = _of_run("run_stage", "1 for the stage the run is in, 0 for the others.", "stage")
STAGE_TIME = _of_run("run_stage_timestamp_seconds", "When a stage left its record.", "stage")
ATTEMPTS = _of_run("attempts_total", "Attempts at training.")
ATTEMPT_OPEN = _of_run("attempt_open", "1 while the newest attempt has no end.")
FRUITLESS = _of_run("attempts_fruitless", "Attempts in a row that brought no checkpoint.")
FAILURES = _of_run("attempt_failures_total", "Attempts that failed, by class.", "cause")
RECOVERIES = _of_run("recoveries_total", "Times that training went on after a failure.")
RECOVERY_S = _of_run("recovery_duration_seconds", "From the last failure to the next trained step.")
RECOVERIES_S = _of_run("recovery_seconds_total", "The same, summed over all recoveries.")
LOST_S = _of_run(
    "lost_seconds_total", "From the last step that counts to the begin of the next, over failures."
)

# Cost of the training attempts.
DEVICE_S = _of_run("device_seconds_total", "Time of GPUs, or of cores, held.", "device")
DEVICE_LOST_S = _of_run(
    "device_lost_seconds_total", "The part of it that no step that counts came of.", "device"
)
DOLLARS = _of_run("cost_dollars_total", "Price of the nodes held; needs prices in the profile.")
DOLLARS_LOST = _of_run("cost_lost_dollars_total", "The part of it that was lost.")

# Gate.
GATE_STEP = _of_run("gate_step", "Step of the adapter that was judged.")
GATE_SUCCESS = _of_run("gate_success_ratio", "Share of the fixed mazes it solves.")
GATE_INTERVAL = _of_run("gate_success_bound_ratio", "Its 95 % Wilson interval.", "bound")
GATE_BASE = _of_run("gate_base_success_ratio", "Share of them that the base solves.")
GATE_PROMOTED = _of_run("gate_promoted", "1 if it may serve.")
HELD_OUT = _of_run("gate_held_out_success_ratio", "Share of other mazes it solves.", "mazes")

# What is around the runs.
CHAMPION = _metric("champion_info", "Always 1; the adapter in service.", "run", "step", "digest")
ENDPOINT_UP = _metric("endpoint_up", "1 if the endpoint answers.")
ENDPOINT_SERVES = _metric("endpoint_serves_champion", "1 if it serves the adapter it should.")
ENDPOINT_BEHIND = _metric("endpoint_generations_behind", "Switches asked for and not made.")
REPLICA_PROVEN = _metric(
    "replica_proven", "1 if a model server was proven to serve the champion.", "replica"
)
REPLICA_BUSY = _metric("replica_in_flight_requests", "Requests it works on.", "replica")
FLOW_RUNS = _metric("flow_runs", "Flow runs in Prefect: due and waiting, or running.", "state")
SOURCE_UP = _metric("source_up", "1 if a source beside the files answers.", "source")
DISK_FREE = _metric("disk_free_bytes", "Free on the disk of the runs.")
DISK_SIZE = _metric("disk_size_bytes", "Size of that disk.")
RUNS = _metric("runs", "Run folders, those without series of their own included.")
UNREADABLE = _metric("runs_unreadable", "Of the newest runs, those whose files make no sense.")
