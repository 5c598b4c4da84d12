"""Who may do what: the rules of Roles and ClusterRoles, as the API's authorizer reads them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Call:
    """One request as RBAC sees it, with what else tests ask about."""

    verb: str
    group: str
    resource: str
    """Plural, with its subresource as in `pods/log`."""
    namespace: str
    name: str = ""
    query: tuple[tuple[str, str], ...] = ()

    @property
    def right(self) -> tuple[str, str, str]:
        return self.group, self.resource, self.verb


@dataclass(frozen=True)
class Rule:
    """Allows verbs on resources, in one namespace or in all and beyond."""

    groups: frozenset[str]
    resources: frozenset[str]
    verbs: frozenset[str]
    namespace: str | None = None

    def allows(self, call: Call) -> bool:
        return (
            call.group in self.groups
            and call.resource in self.resources
            and call.verb in self.verbs
            and self.namespace in (None, call.namespace)
        )

    def rights(self) -> Iterable[tuple[str, str, str]]:
        """Group, resource, verb."""
        for group in self.groups:
            for resource in self.resources:
                for verb in self.verbs:
                    yield group, resource, verb


def read_rules(path: Path) -> list[Rule]:
    """The rules of all Roles and ClusterRoles in a file that kubectl can apply."""
    documents: list[dict[str, Any]] = [*yaml.safe_load_all(path.read_text())]
    return [
        Rule(
            frozenset(rule["apiGroups"]),
            frozenset(rule["resources"]),
            frozenset(rule["verbs"]),
            each["metadata"]["namespace"] if each["kind"] == "Role" else None,
        )
        for each in documents
        if each["kind"] in ("Role", "ClusterRole")
        for rule in each["rules"]
    ]
