"""Cluster and recovery: Ray's nodes, attempts, what failures cost, the disk.

A node of the next cluster has the same address and other labels of Ray's: it is one curve.
"""

from tasks.dashboards.plan import Dashboard, Query, each_run, lines, number, of_run, stack

CLUSTER = Dashboard(
    uid="ariadne-cluster",
    title="Ariadne: cluster and recovery",
    explanation="The machines, and how training came back when they did not hold.",
    panels=(
        number("Ray nodes", "none", Query("sum(ray_cluster_active_nodes)", "alive", "ray")),
        number("Attempt runs", "bool_yes_no", each_run("attempt_open")),
        number("Attempts in a row without a checkpoint", "none", each_run("attempts_fruitless")),
        number("Last recovery took", "s", each_run("recovery_duration_seconds", "failure")),
        number("Lost to failures", "s", each_run("lost_seconds_total")),
        number("Steps trained anew", "none", each_run("train_steps_repeated_total")),
        lines(
            "Failures by class",
            "none",
            Query(
                'sum by (run, cause) (ariadne_attempt_failures_total{run=~"$run"}) > 0',
                "{{run}} {{cause}}",
                "failure",
            ),
        ),
        lines(
            "Attempts and recoveries",
            "none",
            of_run("attempts_total", "attempts"),
            of_run("recoveries_total", "recoveries"),
        ),
        lines(
            "Mean time to resume",
            "s",
            Query(
                'ariadne_recovery_seconds_total{run=~"$run"}'
                ' / (ariadne_recoveries_total{run=~"$run"} > 0)',
                "{{run}}",
                "failure",
            ),
        ),
        lines(
            "Cores in use",
            "percent",
            Query("max by (ip) (ray_node_cpu_utilization)", "{{ip}}", "ray"),
        ),
        lines(
            "Memory in use",
            "percentunit",
            Query(
                "max by (ip) (ray_node_mem_used) / max by (ip) (ray_node_mem_total)",
                "{{ip}}",
                "ray",
            ),
        ),
        lines(
            "GPUs in use",
            "percent",
            Query(
                "max by (ip, GpuIndex) (ray_node_gpus_utilization)", "{{ip}} {{GpuIndex}}", "gpu"
            ),
        ),
        lines(
            "GPU memory in use (MB)",
            "none",
            Query("max by (ip, GpuIndex) (ray_node_gram_used)", "{{ip}} {{GpuIndex}}", "gpu"),
        ),
        lines(
            "Ray's object store",
            "bytes",
            Query(
                "max by (NodeAddress) (ray_object_store_used_memory)", "{{NodeAddress}} used", "ray"
            ),
            Query(
                "max by (NodeAddress) (ray_object_store_available_memory)",
                "{{NodeAddress}} free",
                "ray",
            ),
        ),
        stack(
            "Memory by component",
            "bytes",
            Query("sum by (Component) (ray_component_rss_bytes)", "{{Component}}", "ray"),
        ),
        lines(
            "Network",
            "Bps",
            Query("max by (ip) (ray_node_network_receive_speed)", "{{ip}} in", "ray"),
            Query("max by (ip) (ray_node_network_send_speed)", "{{ip}} out", "ray"),
        ),
        lines("Actors by state", "none", Query("sum by (State) (ray_actors)", "{{State}}", "ray")),
        lines(
            "Disk of the runs",
            "bytes",
            Query("ariadne_disk_free_bytes", "free"),
            Query("ariadne_disk_size_bytes", "size"),
        ),
        lines("Checkpoints kept", "none", each_run("checkpoints_kept")),
        lines("Sources that answer", "bool_yes_no", Query("ariadne_source_up", "{{source}}")),
    ),
)
