"""Stage image: the code and environment that jobs run with, by content."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks import records
from tasks.backends.protocols import Image
from tasks.context import Context
from tasks.records import ImageRecord


@task(task_run_name="image", cache_policy=NO_CACHE)
def build_image(context: Context, *, force: bool = False) -> Image:
    """Find the image of the run or build it; `force` builds it anew."""
    log = get_run_logger()
    digest = context.run.file.image_digest
    image = context.backends.images.find(digest)
    if image is None or force:
        log.info("image: building %s", digest[:12])
        image = context.backends.images.build(digest, force=force)
    else:
        log.info("image: %s is there", digest[:12])
    records.save(ImageRecord(inputs=digest, image=image), context.run.records)
    return image
