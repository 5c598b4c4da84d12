"""The command line of inference servers: what is served, on which address, for whom."""

from pathlib import Path

from containers.server.launch import OPENAI_SERVER, ServerPlan, command, environment


def plan(**changes: object) -> ServerPlan:
    values: dict[str, object] = {
        "module": OPENAI_SERVER,
        "model": Path("/models/base"),
        "served_name": "base",
        "listen": 8100,
        "device": "cpu",
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "lora_rank": 32,
        "max_images": 18,
    }
    return ServerPlan(**{**values, **changes})


def value_of(option: str, words: list[str]) -> str:
    return words[words.index(option) + 1]


def test_servers_listen_on_this_machine_only() -> None:
    assert value_of("--host", command(plan())) == "127.0.0.1"


def test_adapters_are_served_under_their_names() -> None:
    words = command(plan(adapters={"solver": Path("/adapters/step_4")}))
    assert value_of("--lora-modules", words) == "solver=/adapters/step_4"
    assert "--lora-modules" not in command(plan())


def test_only_a_cpu_server_gets_our_worker() -> None:
    assert "AriadneCpuWorker" in value_of("--worker-cls", command(plan()))
    assert "--worker-cls" not in command(plan(device="cuda"))


def test_a_server_behind_the_door_has_no_port() -> None:
    words = command(plan(listen=Path("/run/model-server-1.sock")))
    assert value_of("--uds", words) == "/run/model-server-1.sock"
    assert "--port" not in words and "--host" not in words


def test_no_server_looks_for_anything_outside() -> None:
    variables = environment(plan())
    assert variables["HF_HUB_OFFLINE"] == variables["DO_NOT_TRACK"] == "1"
