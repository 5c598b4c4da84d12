"""What clients send to the door is read within bounds: of size, of time, and of all together."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request

_TIMEOUT_S = 30
_MAX_BYTES = 16 * 2**20
_MAX_HELD_BYTES = 16 * _MAX_BYTES


class Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


class Bodies:
    """The bodies that are held at the door now."""

    def __init__(self) -> None:
        self.held_bytes = 0

    @asynccontextmanager
    async def reading(self, request: Request) -> AsyncGenerator[dict[str, Any]]:
        """The request's JSON object, which counts as held until it is left.

        Raises:
            Refused: it is too large, too slow, or no JSON object, or too much is held.
        """
        raw = bytearray()
        try:
            await self._read(request, raw)
            yield _parse(raw)
        finally:
            self.held_bytes -= len(raw)

    async def _read(self, request: Request, raw: bytearray) -> None:
        try:
            await asyncio.wait_for(self._hear_out(request, raw), _TIMEOUT_S)
        except TimeoutError:
            raise Refused(408, f"the request did not arrive within {_TIMEOUT_S} s") from None
        except ClientDisconnect:
            raise Refused(400, "the client has gone") from None

    async def _hear_out(self, request: Request, raw: bytearray) -> None:
        """To its end, or the client would not listen to the answer; but keep what is allowed."""
        num_bytes, is_full = 0, False
        async for part in request.stream():
            num_bytes += len(part)
            is_full = is_full or self.held_bytes + len(part) > _MAX_HELD_BYTES
            if num_bytes <= _MAX_BYTES and not is_full:
                raw += part
                self.held_bytes += len(part)
        if num_bytes > _MAX_BYTES:
            raise Refused(413, f"a request has at most {_MAX_BYTES // 2**20} MiB")
        if is_full:
            raise Refused(429, "too many large requests at a time", {"retry-after": "1"})


def _parse(raw: bytearray) -> dict[str, Any]:
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is no JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, "the request is no JSON object")
    return body


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
