"""Steady load on an endpoint: a few clients that ask again as soon as they have an answer."""

import base64
import io
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle

import httpx
from PIL import Image

DIGEST_HEADER = "x-ariadne-digest"


@dataclass(frozen=True)
class Answer:
    """One request: how it ended, whose answer it was, how long it took."""

    status: int
    digest: str
    seconds: float


@dataclass
class Load:
    """What the clients have heard so far."""

    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> Counter[int]:
        """Statuses that are no success; 0 is an answer that never came."""
        return Counter(each.status for each in self.answers if each.status != 200)

    @property
    def digests(self) -> list[str]:
        """Whose answers came, in the order in which they came."""
        return [answer.digest for answer in self.answers if answer.status == 200]

    @property
    def per_second(self) -> float:
        return len(self.answers) / self.seconds

    def percentile_ms(self, percent: int) -> float:
        times = [answer.seconds * 1000 for answer in self.answers]
        return statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


@contextmanager
def steady_load(url: str, models: tuple[str, ...], num_clients: int) -> Generator[Load]:
    """Clients that ask the models in turn for as long as the body runs."""
    load, stop, began = Load(), threading.Event(), time.monotonic()

    def client() -> None:
        with httpx.Client(timeout=120, headers=authorisation()) as http:
            for model in cycle(models):
                if stop.is_set():
                    return
                load.answers.append(ask(http, url, model))

    clients = [threading.Thread(target=client) for _ in range(num_clients)]
    for each in clients:
        each.start()
    try:
        yield load
    finally:
        stop.set()
        for each in clients:
            each.join(150)
        load.seconds = time.monotonic() - began


def ask(http: httpx.Client, url: str, model: str) -> Answer:
    """One question with a picture."""
    began = time.monotonic()
    try:
        answer = http.post(f"{url}/chat/completions", json=question(model))
    except httpx.TransportError:
        return Answer(0, "", time.monotonic() - began)
    seconds = time.monotonic() - began
    return Answer(answer.status_code, answer.headers.get(DIGEST_HEADER, ""), seconds)


def question(model: str, num_pictures: int = 1, text: str = "Where to?") -> dict[str, object]:
    picture = {"type": "image_url", "image_url": {"url": _PICTURE}}
    content = [*[picture] * num_pictures, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0.0}


def authorisation() -> dict[str, str]:
    key = os.environ.get("VLLM_API_KEY")
    return {"authorization": f"Bearer {key}"} if key else {}


def _picture() -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


_PICTURE = _picture()
