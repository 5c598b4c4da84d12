"""Why pods are not ready, by what Kubernetes tells of them."""

from tasks.backends.kuberay_reasons import Scene, about, explain
from tasks.backends.kubernetes_api import (
    EVENTS,
    NODES,
    PODS,
    Kind,
    KubernetesApi,
    KubernetesError,
    Object,
)


def why_not_ready(api: KubernetesApi, labels: str, starts: str) -> str:
    """In words; empty where nothing hinders them.

    Args:
        api: Where the pods are.
        labels: Selects them.
        starts: Said of a pod that runs and is not ready yet.
    """
    pods = api.list(PODS, labels=labels)
    nothing: Object = {"metadata": {}, "spec": {}}
    events = about(pods, _visible(api, EVENTS, fields="involvedObject.kind=Pod"))
    scene = Scene(nothing, pods, events, _visible(api, NODES), starts=starts)
    return "; ".join(reason.text for reason in explain(scene))


def _visible(api: KubernetesApi, kind: Kind, fields: str = "") -> list[Object]:
    """Only explanations come from these, and not everybody may see them."""
    try:
        return api.list(kind, fields=fields)
    except KubernetesError as error:
        if error.status not in (403, 404):
            raise
        return []
