"""Kills on the real local stack: whatever dies, the run ends as if nothing had happened.

make chaos
make chaos ARGS="-k head"
"""

import os
import signal
import time
from collections.abc import Callable

import httpx
import psutil
import pytest

from tasks import services
from tasks.backends.supervisord import Supervisord
from tests.chaos.conftest import Begin
from tests.chaos.trial import TRAINER, Facts, Row, Trial
from tests.homes import address, cancel_running, find, flow_processes, kill_all, ours

Report = Callable[[Row], None]


def ends_undisturbed(trial: Trial, undisturbed: Facts, report: Report, fault: str) -> None:
    """No step lost that was committed, none doubled, nothing left behind, the same adapter."""
    assert trial.end() == 0, trial.log.read_text()[-3000:]
    assert trial.facts() == undisturbed
    row = trial.row(fault)
    assert row.steps_lost is None or row.steps_lost <= 1, "at most the checkpoint interval"
    report(row)


def kill_policy_worker(trial: Trial) -> None:
    workers = [p for p, words in ours(trial.home) if "PolicyWorker" in " ".join(words)]
    assert workers
    for worker in workers:
        worker.kill()


def test_policy_worker_in_training(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)
    trial.strike(lambda: kill_policy_worker(trial))
    ends_undisturbed(trial, undisturbed, report, "policy worker killed in training")


def test_policy_worker_in_a_checkpoint(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.catch(lambda: trial.checkpoint(2).is_dir())
    trial.strike(lambda: kill_policy_worker(trial))
    ends_undisturbed(trial, undisturbed, report, "policy worker killed while it saves")


def test_driver_in_publishing(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.catch(lambda: trial.is_committed(2))
    trial.strike(lambda: trial.kill(TRAINER))
    ends_undisturbed(trial, undisturbed, report, "Ray driver killed as its adapter goes out")


def test_inference_server_in_rollout(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)
    servers = [
        p for p, words in ours(trial.home) if any("skyrl" in w and "server" in w for w in words)
    ]
    assert servers
    trial.strike(lambda: kill_all(servers))
    ends_undisturbed(trial, undisturbed, report, "inference server killed in rollout")


def test_worker_node(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)
    trial.strike(lambda: trial.kill_program("ray-smoke-worker-1"))
    ends_undisturbed(trial, undisturbed, report, "worker node lost")


def test_head_node(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)
    trial.strike(lambda: trial.kill_program("ray-smoke-head"))
    ends_undisturbed(trial, undisturbed, report, "head node lost")


def test_prefect_worker(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)
    (worker,) = [s for s in Supervisord(trial.home).states() if s.name == "prefect-worker"]
    assert worker.pid
    trial.strike(lambda: os.kill(worker.pid or 0, signal.SIGKILL))
    ends_undisturbed(trial, undisturbed, report, "Prefect worker killed")


def test_flow_process(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)
    trial.strike(lambda: kill_all(flow_processes(trial.home)))
    ends_undisturbed(trial, undisturbed, report, "flow process killed")


def test_flow_and_driver(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)

    def both() -> None:
        kill_all(flow_processes(trial.home))
        trial.kill(TRAINER)

    trial.strike(both)
    ends_undisturbed(trial, undisturbed, report, "flow process and Ray driver killed")


def test_prefect_server(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)
    trial.strike(lambda: trial.kill_program("prefect-server"))
    ends_undisturbed(trial, undisturbed, report, "Prefect server killed; it returns")


def test_tracker_away(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(1)
    trial.strike(lambda: Supervisord(trial.home).stop("mlflow"))
    trial.wait_for_step(3)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{address(trial.home, 'mlflow_url')}/health", timeout=5)
    services.up(trial.home)
    ends_undisturbed(trial, undisturbed, report, "MLflow away for two steps")


def test_whole_machine(begin: Begin, undisturbed: Facts, report: Report) -> None:
    """As in a reboot: everything dies at once, and the operator starts the same run again."""
    trial = begin()
    trial.wait_for_step(2)

    def power_cut() -> None:
        trial.flow.kill()
        kill_all([process for process, _ in ours(trial.home)])

    trial.strike(power_cut)
    trial.flow.wait()
    trial.flow = trial.start()
    ends_undisturbed(trial, undisturbed, report, "everything killed; `make run` again")


def test_hanging_trainer(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)

    def freeze() -> None:
        for process in find(trial.home, TRAINER):
            process.send_signal(signal.SIGSTOP)

    trial.strike(freeze)
    ends_undisturbed(trial, undisturbed, report, "trainer hangs (SIGSTOP)")
    diagnosis = trial.folder / "scratch" / "attempt-1" / "diagnosis.txt"
    assert "train_main" in diagnosis.read_text()


def test_two_flows_at_once(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    second = trial.start()
    ends_undisturbed(trial, undisturbed, report, "the same run started twice at once")
    assert second.wait(300) == 0
    assert trial.facts() == undisturbed


def test_spot_notice(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)

    def notice() -> None:
        for process in find(trial.home, TRAINER):
            process.terminate()

    trial.strike(notice)
    ends_undisturbed(trial, undisturbed, report, "SIGTERM to the driver (spot notice)")


def test_old_attempt_wakes_up(begin: Begin, undisturbed: Facts, report: Report) -> None:
    """Attempt 1 is killed, attempt 2 finishes; then the program of attempt 1 runs once more."""
    trial = begin()
    trial.wait_for_step(1)
    (driver,) = find(trial.home, TRAINER)
    command, environment, folder = driver.cmdline(), driver.environ(), driver.cwd()
    trial.strike(driver.kill)
    trial.wait(lambda: (trial.folder / "attempts" / "2.json").is_file())
    trial.wait_for_step(3)
    before = {p: p.stat().st_mtime_ns for p in trial.folder.glob("checkpoints/*/COMMITTED.json")}
    ghost = psutil.Popen(command, env=environment, cwd=folder, stdout=-3, stderr=-3)
    assert ghost.wait(180) != 0
    assert all(p.stat().st_mtime_ns == then for p, then in before.items() if p.exists())
    ends_undisturbed(trial, undisturbed, report, "an old attempt wakes up")


def test_cancelled_and_started_again(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    trial.wait_for_step(2)
    began = time.monotonic()
    trial.strike(lambda: cancel_running(trial.home))
    assert trial.flow.wait(120) != 0
    assert not find(trial.home, TRAINER)
    assert time.monotonic() - began < 60
    assert trial.tracked()["info"]["status"] == "KILLED"
    trial.flow = trial.start()
    ends_undisturbed(trial, undisturbed, report, "cancelled, then started again")
