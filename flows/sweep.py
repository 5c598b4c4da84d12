"""sweep: find and free what dead flow runs have left behind; started by a schedule."""

from prefect import flow

from tasks.home import Home
from tasks.sweep import sweep_clusters, sweep_runs


@flow(name="sweep")
def sweep() -> list[str]:
    """Free the clusters and close the runs of flow runs that are over.

    Returns:
        What was freed.
    """
    home = Home.from_environment()
    return sweep_clusters(home) + sweep_runs(home)
