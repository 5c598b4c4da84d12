"""The whole chain on real services: three training steps, a kill in the middle, an adapter served.

One home for the whole file, brought up once; the tests look at what the run left behind.
"""

import json
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from configs.jobs import EvaluationSummary
from tasks.metrics.services import MetricsServices
from tasks.records import GateRecord
from tests.chains import Chain
from tests.homes import address, ariadne, ours
from tests.panels import check_panels, look_at_panels
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.pipeline


def test_the_run_ends_with_a_table_of_what_came_of_it(chain: Chain) -> None:
    for row in ("solved before", "solved after", "adapter", "endpoint", "MLflow"):
        assert row in chain.output


def test_a_killed_training_job_goes_on_from_its_checkpoint(chain: Chain) -> None:
    attempts = [
        json.loads((chain.run.attempts / f"{number}.json").read_text()) for number in (1, 2)
    ]
    assert attempts[0]["cause"] == "killed"
    assert attempts[1]["start_step"] >= 1
    assert attempts[1]["reason"] == "succeeded"
    assert chain.run.committed_step() == chain.run.config.train.steps


def test_every_step_has_one_line_of_metrics_that_counts(chain: Chain) -> None:
    steps = chain.run.steps()
    assert [line.step for line in steps] == [1, 2, 3]
    assert steps[0].attempt == 1 and steps[-1].attempt == 2
    assert all("environment/success" in line.values for line in steps)


def test_trainer_and_server_agree_on_the_log_probabilities(chain: Chain) -> None:
    gaps = [
        line.values["policy/rollout_train_logprobs_abs_diff_mean"] for line in chain.run.steps()
    ]
    assert max(gaps) < 0.01


def test_all_64_mazes_have_an_outcome_for_base_and_adapter(chain: Chain) -> None:
    summaries = [
        EvaluationSummary.model_validate_json(path.read_text())
        for path in chain.run.folder.glob("evals/*/summary.json")
    ]
    assert [len(summary.solved) for summary in summaries] == [64, 64]
    assert any(abs(summary.num_solved - 28) <= 2 for summary in summaries)


def test_the_evaluation_of_the_adapter_has_its_page(chain: Chain) -> None:
    (page,) = chain.run.folder.glob("evals/*/report.html")
    assert page.read_text().count('class="tile"') == 64


def test_mlflow_has_one_run_with_one_point_for_each_step(chain: Chain) -> None:
    base = address(chain.home, "mlflow_url") + "/api/2.0/mlflow"
    found = httpx.post(f"{base}/runs/search", json={"experiment_ids": ["1"]}, timeout=30).json()[
        "runs"
    ]
    (run,) = found
    assert run["info"]["status"] == "FINISHED"
    history = httpx.get(
        f"{base}/metrics/get-history",
        params={"run_id": run["info"]["run_id"], "metric_key": "environment/success"},
        timeout=30,
    ).json()["metrics"]
    assert sorted(point["step"] for point in history) == [1, 2, 3]
    (version,) = httpx.get(f"{base}/model-versions/search", timeout=30).json()["model_versions"]
    champion = httpx.get(
        f"{base}/registered-models/alias",
        params={"name": version["name"], "alias": "champion"},
        timeout=30,
    ).json()["model_version"]
    assert champion["version"] == version["version"]


def test_the_gate_has_the_decision_and_the_held_out_mazes_on_record(chain: Chain) -> None:
    decision = GateRecord.model_validate_json((chain.run.records / "gate.json").read_text())
    assert decision.promoted and decision.champion_digest is None
    assert decision.base.num_solved == decision.num_solved - len(decision.base.wins) + len(
        decision.base.losses
    )
    assert [(score.name, score.num_mazes) for score in decision.held_out] == [
        ("7x7", 8),
        ("9x9", 4),
    ]


def test_the_endpoint_answers_as_base_and_as_adapter(chain: Chain) -> None:
    url = json.loads((chain.home.hosting / "endpoint.json").read_text())["url"]
    models = httpx.get(f"{url}/models", timeout=30).json()["data"]
    assert {"base", "maze-solver"} <= {model["id"] for model in models}


def test_the_hosted_adapter_plays_a_maze_and_draws_it(chain: Chain) -> None:
    picture = chain.home.root / "solve.gif"
    done = ariadne(chain.home, "solve", "--seed", "123", "--out", str(picture))
    assert done.returncode == 0, done.stderr
    assert "turns" in done.stdout
    assert picture.read_bytes().startswith(b"GIF89a")


def test_the_same_run_again_trains_nothing_and_is_quick(chain: Chain) -> None:
    before = (chain.run.metrics.read_bytes(), len(list(chain.run.attempts.glob("*.json"))))
    began = time.monotonic()
    done = ariadne(chain.home, "run", "--profile", "smoke")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60
    assert "train:" not in done.stdout and "evaluate:" not in done.stdout
    after = (chain.run.metrics.read_bytes(), len(list(chain.run.attempts.glob("*.json"))))
    assert after == before


def test_nothing_of_the_killed_attempt_is_left(chain: Chain) -> None:
    assert not psutil.pid_exists(chain.killed_pid)
    assert not [words for _, words in ours(chain.home) if "vllm_server_actor" in " ".join(words)]


def test_every_panel_of_every_dashboard_has_data_of_this_run(chain: Chain) -> None:
    metrics = MetricsServices.recorded(chain.home)
    assert metrics and metrics.prometheus_url
    since = (chain.run.folder / "turn.json").stat().st_ctime - 900
    asked = (metrics.prometheus_url, since, {"gpu", "kl", "prices"})

    def shows_what_is_played() -> bool:
        """A rate needs a look before the traffic and another one after it."""
        assert ariadne(chain.home, "solve", "--seed", "123").returncode == 0
        return not look_at_panels(*asked)[0]

    with suppress(AssertionError):  # what is wrong is said below
        wait_until(shows_what_is_played, timeout_s=120)
    assert check_panels(*asked)
