"""Words of other programs, made fit to show: no colours, no keys, never more than a few lines."""

import re
from collections.abc import Iterator
from pathlib import Path

_LONGEST_LINE = 400
_LONGEST_READ = 4000
_TAIL_BYTES = 20_000
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles and links
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]"
)
_SECRETS = (
    # NAME_KEY=..., "token": "...", and the like; the name stays.
    re.compile(
        r"(?i)((?:api[_-]?key|access[_-]?key|secret|(?<![a-z])token(?![a-z])|passw(?:or)?d|"
        r"credentials?)[\w-]*[\"']?\s*[=:]\s*[\"']?)(?!None\b|null\b)[^\s\"',;&}]{6,}"
    ),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(://)[^\s/@:]+:[^\s/@]+(?=@)"),
    re.compile(r"()\b(?:hf_|sk-|gh[pousr]_|glpat-|glsa_|AKIA|ASIA)[\w-]{12,}"),
)


def clean(line: str) -> str:
    """One printable line of at most 400 characters, without colours and keys."""
    text = _CONTROL.sub("", line[:_LONGEST_READ]).rstrip()
    for secret in _SECRETS:
        text = secret.sub(r"\1***", text)
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 4] + " ..."


def last_lines(text: str, num_lines: int = 8) -> list[str]:
    """The last lines that say anything, cleaned."""
    said = (line for line in text[-_TAIL_BYTES:].splitlines() if line.strip())
    return [clean(line) for line in list(said)[-num_lines:]]


def quote(text: str) -> str:
    """The last lines, each on a line of its own and indented."""
    return "".join(f"\n    {line}" for line in last_lines(text))


def tail(file: Path, num_bytes: int = _TAIL_BYTES) -> str:
    """The end of a text file; empty where there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, 2) - num_bytes))
            return opened.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def telling_line(text: str, silence: str = "it printed nothing") -> str:
    """The line of a log that says most about its end: the last error, else the last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return clean(next(_errors(lines), lines[-1] if lines else silence).strip())


def _errors(lines: list[str]) -> Iterator[str]:
    return (line for line in reversed(lines) if "Error" in line or "refuses" in line)
