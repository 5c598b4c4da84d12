"""The Kubernetes API as plain objects: the one file that speaks to its client library.

Every call has a timeout, calls that fail for a moment are tried again, and unknown fields are
refused by the server instead of dropped.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import config as loader
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay
from tenacity.wait import wait_random_exponential
from urllib3.exceptions import HTTPError

from configs.kuberay import ApiConfig
from tasks.backends.eks_token import EksAccess

Object = dict[str, Any]

_TIMEOUT_S = (5, 30)
"""To connect, and between two bytes."""
_RETRY_FOR_S = 60
_PASSING = (429, 500, 502, 503, 504)
_MAX_PAUSE_S = 30
_PAGE = 500
_backoff = wait_random_exponential(multiplier=0.5, max=_MAX_PAUSE_S)


@dataclass(frozen=True)
class Kind:
    """A kind of object as paths name it."""

    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    def path(self, namespace: str) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return (
            f"{root}/namespaces/{namespace}/{self.plural}"
            if self.namespaced
            else (f"{root}/{self.plural}")
        )


RAY_CLUSTERS = Kind("rayclusters", "ray.io")
RAY_SERVICES = Kind("rayservices", "ray.io")
PODS = Kind("pods")
EVENTS = Kind("events")
NODES = Kind("nodes", namespaced=False)
CLAIMS = Kind("persistentvolumeclaims")
VOLUMES = Kind("persistentvolumes", namespaced=False)
DEPLOYMENTS = Kind("deployments", "apps")
SERVICES = Kind("services")
WORKLOADS = Kind("workloads", "kueue.x-k8s.io", "v1beta1")


class KubernetesError(RuntimeError):
    """The API refused or could not be reached; one line with the next move."""

    def __init__(self, message: str, status: int = 0, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 where there was no answer."""
        self.retry_after_s = retry_after_s
        """How long the server asks to stay away; 0 where it does not."""


class KubernetesApi:
    """Objects of one namespace, and those that have none."""

    def __init__(self, namespace: str, configuration: Configuration) -> None:
        configuration.retries = False  # ours know what may pass
        self._namespace = namespace
        self._host = configuration.host
        self._client = ApiClient(configuration)

    @classmethod
    def connect(cls, namespace: str, config: ApiConfig) -> "KubernetesApi":
        """The API of a profile. Nothing is asked yet.

        Raises:
            KubernetesError: its credentials are not where the profile says.
        """
        try:
            return cls(namespace, _ACCESS[config.access](config))
        except (loader.ConfigException, OSError) as error:
            raise KubernetesError(
                f"cluster.kuberay.api.access = {config.access!r} finds no credentials: "
                f"{_one_line(error)}"
            ) from None

    def get(self, kind: Kind, name: str) -> Object | None:
        """None where there is none."""
        try:
            return self._ask("GET", kind, name)
        except KubernetesError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: Kind, labels: str = "", fields: str = "") -> list[Object]:
        """All that match, page by page."""
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(_PAGE)}
        found: list[Object] = []
        while True:
            page = self._ask("GET", kind, query=query)
            found += page["items"]
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return found

    def create(self, kind: Kind, body: Object) -> bool:
        """True where it was made; False where one of this name is there already."""
        try:
            self._ask("POST", kind, query={"fieldValidation": "Strict"}, body=body)
        except KubernetesError as error:
            if error.status == 409:
                return False
            raise
        return True

    def ask_for(self, kind: Kind, body: Object) -> Object:
        """The answer to an object that is not kept, such as a review or a token."""
        return self._ask("POST", kind, query={"fieldValidation": "Strict"}, body=body)

    def replace(self, kind: Kind, known: Object, body: Object) -> bool:
        """Put `body` in the place of the object as it is known; False where it is no longer so."""
        version = {"resourceVersion": known["metadata"]["resourceVersion"]}
        body = body | {"metadata": body["metadata"] | version}
        name = known["metadata"]["name"]
        try:
            self._ask("PUT", kind, name, query={"fieldValidation": "Strict"}, body=body)
        except KubernetesError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    def delete(self, kind: Kind, known: Object, grace_s: int | None = None) -> None:
        """Delete exactly this object, whatever else has its name by now, after what it owns."""
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": known["metadata"]["uid"]},
            "propagationPolicy": "Foreground",
        }
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            self._ask("DELETE", kind, known["metadata"]["name"], body=body)
        except KubernetesError as error:
            if error.status not in (404, 409):  # gone, or another of its name
                raise

    def await_change(self, kind: Kind, known: Object, timeout_s: int) -> None:
        """Return once the object is no longer as it is known, or after about `timeout_s`."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={known['metadata']['name']}",
            "resourceVersion": known["metadata"]["resourceVersion"],
            "timeoutSeconds": str(timeout_s),
        }
        try:
            self._call("GET", kind.path(self._namespace), query, first_byte=True)
        except KubernetesError as error:
            if error.status != 410:  # too old to know: the caller looks anew
                raise

    def log(self, pod: str, container: str, num_lines: int) -> str:
        """The last lines that the container has printed."""
        query = {"container": container, "tailLines": str(num_lines)}
        path = f"{PODS.path(self._namespace)}/{pod}/log"
        return self._call("GET", path, query).decode(errors="replace")

    def _ask(
        self,
        method: str,
        kind: Kind,
        name: str = "",
        query: dict[str, str] | None = None,
        body: Object | None = None,
    ) -> Object:
        path = kind.path(self._namespace) + (f"/{name}" if name else "")
        return json.loads(self._call(method, path, query or {}, body))

    def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None = None,
        *,
        first_byte: bool = False,
    ) -> bytes:
        """The answer, tried again while it may only be delayed.

        A creation whose answer was lost finds its own object the second time.
        """
        tries = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=_pause_s,
            stop=stop_after_delay(_RETRY_FOR_S),
            reraise=True,
        )
        return tries(self._read, method, path, query, body, first_byte=first_byte)

    def _read(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None = None,
        *,
        first_byte: bool = False,
    ) -> bytes:
        given = [(key, value) for key, value in query.items() if value]
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        try:
            request = self._client.param_serialize(
                method, path, None, given, headers, body, auth_settings=["BearerToken"]
            )
            answer = self._client.call_api(*request, _request_timeout=_TIMEOUT_S)
            if first_byte and answer.status < 400:
                with contextlib.closing(answer.response) as stream:
                    return stream.read(1)
            data = answer.read()
        except HTTPError as error:
            raise KubernetesError(
                f"the Kubernetes API at {self._host} does not answer: {_one_line(error)}; is "
                "cluster.kuberay.api right, and is it reachable from here?"
            ) from error
        except ApiException as error:
            raise KubernetesError(f"the Kubernetes API: {_one_line(error)}") from error
        if answer.status >= 400:
            raise self._refusal(method, path, answer.status, data, answer.getheader("Retry-After"))
        return data

    def _refusal(
        self, method: str, path: str, status: int, data: bytes, retry_after: str | None
    ) -> KubernetesError:
        """One line with what the API's Status object says, and what to do about it."""
        try:
            said = json.loads(data).get("message") or data.decode()
        except ValueError:
            said = data.decode(errors="replace")
        advice = _ADVICE.get(status, "")
        return KubernetesError(
            f"the Kubernetes API answers {status} to {method} {path}: {_one_line(said)}{advice}",
            status,
            int(retry_after) if retry_after and retry_after.isdigit() else 0,
        )


_ADVICE = {
    401: "; are the credentials of cluster.kuberay.api still good?",
    403: "; an administrator can apply configs/kuberay-rbac.yaml",
    404: "; is KubeRay installed, and is the namespace there?",
}


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, KubernetesError) and (error.status in _PASSING or not error.status)


def _pause_s(state: RetryCallState) -> float:
    """What the server asks for, or a random time that grows."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, KubernetesError) and error.retry_after_s:
        return min(error.retry_after_s, _MAX_PAUSE_S)
    return _backoff(state)


def _in_cluster(config: ApiConfig) -> Configuration:
    configuration = Configuration()
    loader.load_incluster_config(client_configuration=configuration)
    return configuration


def _kubeconfig(config: ApiConfig) -> Configuration:
    configuration = Configuration()
    loader.load_kube_config(
        config_file=str(Path(config.kubeconfig).expanduser()) if config.kubeconfig else None,
        context=config.context or None,
        client_configuration=configuration,
        persist_config=False,
    )
    return configuration


def _eks(config: ApiConfig) -> Configuration:
    access = EksAccess(config.eks_cluster, config.region)
    endpoint, authority = access.endpoint()
    configuration = Configuration(host=endpoint, ca_cert_data=authority)

    def refresh(configuration: Configuration) -> None:
        configuration.api_key["BearerToken"] = f"Bearer {access.token()}"

    refresh(configuration)
    configuration.refresh_api_key_hook = refresh
    return configuration


_ACCESS: dict[str, Callable[[ApiConfig], Configuration]] = {
    "in_cluster": _in_cluster,
    "kubeconfig": _kubeconfig,
    "eks": _eks,
}


def _one_line(words: object) -> str:
    return " ".join(str(words).split())[:500]
