"""What was put to service, in order, and why: hosting/history.jsonl.

The last line is the champion, the adapter that serves now. The registry's aliases are a view of
this file.
"""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.home import Home
from tasks.records import Promotion, write_whole


class Hosted(BaseModel):
    """One line of the history: an adapter that was put to service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    step: int
    adapter_digest: str
    promotion: Promotion | None = None
    """None where nobody had asked for reasons yet."""


def history(home: Home) -> list[Hosted]:
    """What was put to service, oldest first."""
    file = home.hosting / "history.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [Hosted.model_validate_json(line) for line in lines]


def remember(home: Home, hosted: Hosted) -> Hosted:
    """Add to the history what does not serve already; the line that stands there in the end."""
    served = history(home)
    if served and served[-1].adapter_digest == hosted.adapter_digest:
        return served[-1]
    lines = [each.model_dump_json() for each in [*served, hosted]]
    write_whole(home.hosting / "history.jsonl", "\n".join(lines) + "\n")
    return hosted


def champion(home: Home, candidate_digest: str) -> Hosted | None:
    """The adapter that a candidate has to stand up to: the last in service that is another one.

    For a candidate that serves already this is the one it replaced, so that a flow that is
    started again finds the decision it has found before.
    """
    others = [each for each in history(home) if each.adapter_digest != candidate_digest]
    return others[-1] if others else None


@dataclass(frozen=True)
class Rollback:
    """What is to serve again, and instead of what."""

    to: Hosted
    instead_of: Hosted

    @property
    def promotion(self) -> Promotion:
        bad = self.instead_of
        why = f"instead of adapter {bad.adapter_digest[:12]}, step {bad.step} of run {bad.run_id}"
        return Promotion.now("rollback", "rollback", why)


def choose_rollback(home: Home) -> Rollback:
    """From what serves now to what served before it.

    Raises:
        ValueError: nothing did.
    """
    served = history(home)
    earlier = champion(home, served[-1].adapter_digest) if served else None
    if earlier is None:
        raise ValueError("nothing to roll back to: no other adapter was hosted before")
    return Rollback(to=earlier, instead_of=served[-1])


def is_replaced(home: Home, adapter_digest: str) -> bool:
    """The adapter served, and another one does now."""
    served = [hosted.adapter_digest for hosted in history(home)]
    return adapter_digest in served[:-1] and served[-1] != adapter_digest


def is_rolled_back(home: Home, adapter_digest: str) -> bool:
    """The adapter served, and a rollback is what took it out of service."""
    after: Hosted | None = None
    for hosted in reversed(history(home)):
        if hosted.adapter_digest == adapter_digest:
            break
        after = hosted
    else:
        return False
    return bool(after and after.promotion and after.promotion.by == "rollback")


def on_word_of(operator: str, reason: str) -> Promotion | None:
    """An operator's promotion; None where the operator leaves it to the gate.

    Raises:
        ValueError: name or reason is missing, too short or too long, or not one printable line.
    """
    if not operator and not reason:
        return None
    try:
        return Promotion.now("operator", operator, reason)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"to overrule the gate give your name and a reason: {first['loc'][0]}: {first['msg']}"
        ) from None
