"""The Status objects with which the API refuses, in the real one's words."""

from typing import Any

Object = dict[str, Any]


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details or {},
            "code": code,
        }


def resource(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def not_found(plural: str, group: str, name: str) -> Refusal:
    details = {"name": name, "group": group, "kind": plural}
    return Refusal(404, "NotFound", f'{resource(plural, group)} "{name}" not found', details)


def no_such_path() -> Refusal:
    """What a kind that is not installed gives; the real one answers with plain text."""
    return Refusal(404, "NotFound", "the server could not find the requested resource")


def already_exists(plural: str, group: str, name: str) -> Refusal:
    details = {"name": name, "group": group, "kind": plural}
    message = f'{resource(plural, group)} "{name}" already exists'
    return Refusal(409, "AlreadyExists", message, details)


def conflict(plural: str, group: str, name: str, why: str) -> Refusal:
    details = {"name": name, "group": group, "kind": plural}
    message = f'Operation cannot be fulfilled on {resource(plural, group)} "{name}": {why}'
    return Refusal(409, "Conflict", message, details)


def stale(plural: str, group: str, name: str) -> Refusal:
    why = (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    return conflict(plural, group, name, why)


def forbidden(user: str, verb: str, plural: str, group: str, namespace: str) -> Refusal:
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    message = (
        f'{resource(plural, group)} is forbidden: User "{user}" cannot {verb} resource '
        f'"{plural}" in API group "{group}" {where}'
    )
    return Refusal(403, "Forbidden", message, {"group": group, "kind": plural})


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def unknown_fields(kind: str, version: str, fields: list[str]) -> Refusal:
    told = ", ".join(f'unknown field "{each}"' for each in fields)
    message = f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error'
    return Refusal(400, "BadRequest", f"{message}: {told}")


def invalid(kind: str, group: str, name: str, causes: list[str]) -> Refusal:
    what = resource(kind, group)
    return Refusal(422, "Invalid", f'{what} "{name}" is invalid: {"; ".join(causes)}')


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def expired(version: int, oldest: int) -> Refusal:
    return Refusal(410, "Expired", f"too old resource version: {version} ({oldest})")


def unsupported(content_type: str) -> Refusal:
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"application/merge-patch+json, not {content_type}"
    )
    return Refusal(415, "UnsupportedMediaType", message)
