"""A Kubernetes API in this process, over real HTTP on 127.0.0.1, as strict as the real one.

    with KubernetesServer(operator=comes_up) as server:
        api = KubernetesApi.connect("ariadne", ApiConfig(**server.access(tmp_path)))

It keeps objects with resourceVersions, generations and uids, serves get, list (selectors, pages),
watch, create, update, merge patch, delete (preconditions, propagation, finalizers), the status
subresource and pods' logs; refuses unknown fields, bad values, stale updates, wrong tokens and what
its RBAC rules do not allow, each with the Status object that the real one sends.

It has no controllers but one: an operator per RayCluster, a function that stands for KubeRay and
the machines under it. It may as well start a real Ray cluster.
"""
