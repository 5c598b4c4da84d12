"""Stage publish: champion and previous are in the object store, where the profile has one."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks import publication
from tasks.context import Context
from tasks.host import hosting
from tasks.hosted import champion, history
from tasks.records import HostRecord


@task(task_run_name="publish", cache_policy=NO_CACHE, retries=3, retry_delay_seconds=10)
def publish_hosted(context: Context, hosted: HostRecord) -> str | None:
    """Copy the adapter that serves; where it is in the store. Old ones go after their notice.

    Raises:
        ValueError: the adapter is damaged.
        RuntimeError: the store is away or refuses.
    """
    store, config = context.backends.store, context.config.store
    if store is None or config is None:
        return None
    with hosting(context.home):  # what is wanted must not change meanwhile
        served = history(context.home)[-1]
        before = champion(context.home, served.adapter_digest)
        if served.adapter_digest != hosted.adapter_digest:
            return None  # another one serves by now, and its flow publishes it
        place = publication.publish(store, context.run.adapter(served.step))
        wanted = {each.adapter_digest for each in (served, before) if each}
        removed = publication.retire(store, wanted, config.grace_days)
    get_run_logger().info("publish: %s has %s; removed: %d", config.url, place, len(removed))
    return place
