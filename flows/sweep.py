"""sweep: find and free what dead flow runs have left behind; started by a schedule."""

from prefect import flow

from tasks.home import Home
from tasks.sweep import sweep_clusters, sweep_hosting, sweep_runs


@flow(name="sweep")
def sweep() -> list[str]:
    """Free the clusters, close the runs and undo the half-done hosting of flow runs that are over.

    Returns:
        What was freed, closed or put back.
    """
    home = Home.from_environment()
    return sweep_clusters(home) + sweep_runs(home) + sweep_hosting(home)
