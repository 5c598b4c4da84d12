"""An image of the jobs, built by AWS CodeBuild and kept in ECR.

The source goes to S3 as an archive named by its content, the image to a tag named likewise, and
tags are immutable: the same content is built once, and no tag is ever of other content. A build
that runs already, since its flow has died for one, is followed. Two flows that start one at the
same time ask with the same token, for which CodeBuild starts one build.
"""

import io
import logging
import time
import zipfile
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from configs.digests import digest_of, digest_of_file
from configs.image import CodeBuildConfig, RegistryConfig
from tasks.backends.image_source import APP, BUILDSPEC, DOCKERFILE, PYTHON, ImageSource
from tasks.backends.protocols import Image

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.INFO)  # Prefect passes on what this package logs, but leaves its level alone
_CONFIG = Config(
    connect_timeout=5, read_timeout=60, retries={"mode": "standard", "max_attempts": 5}
)
_POLL_S = 10.0
_RECENT = 20
"""Builds of a project that are looked at; it builds one image after the other."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same files make the same archive, whenever they were checked out."""
_EXPIRY = """{"rules": [{"rulePriority": 1, "description": "images that no tag names",
"selection": {"tagStatus": "untagged", "countType": "sinceImagePushed", "countUnit": "days",
"countNumber": 14}, "action": {"type": "expire"}}]}"""
_ABSENT = ("ImageNotFoundException", "RepositoryNotFoundException")
_THERE = ("RepositoryAlreadyExistsException",)


class CodeBuild:
    """Implements `ImageBuilder` with CodeBuild, ECR and S3."""

    def __init__(
        self,
        registry: RegistryConfig,
        config: CodeBuildConfig,
        source: ImageSource,
        client: Callable[[str], Any] | None = None,
        poll_s: float = _POLL_S,
    ) -> None:
        self._registry = registry
        self._config = config
        self._source = source
        self._poll_s = poll_s
        session = boto3.Session(region_name=config.region)
        make = client or (lambda service: session.client(service, config=_CONFIG))
        self._ecr, self._s3, self._codebuild = make("ecr"), make("s3"), make("codebuild")

    def digest(self) -> str:
        parts = [digest_of_file(self._source.root / file) for file in (DOCKERFILE, BUILDSPEC)]
        return digest_of([self._source.digest(), *parts, self._registry.base])

    def find(self, digest: str) -> Image | None:
        """The image of this content in ECR.

        Raises:
            RuntimeError: AWS does not say; one line.
        """
        try:
            found = self._ecr.describe_images(
                repositoryName=self._name, imageIds=[{"imageTag": _tag(digest)}]
            )
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise RuntimeError(self._refusal("ecr:DescribeImages", error)) from None
        except BotoCoreError as error:
            raise RuntimeError(self._refusal("ecr:DescribeImages", error)) from None
        manifest = found["imageDetails"][0]["imageDigest"]
        reference = f"{self._registry.repository}@{manifest}"
        return Image(digest=digest, python=PYTHON, app=APP, reference=reference)

    def build(self, digest: str, *, force: bool) -> Image:
        """Have it built, unless it is there. Tags are immutable, so `force` changes nothing then.

        Raises:
            RuntimeError: it is not the image of today's code, AWS refuses, or the build failed, was
                stopped or took too long: with its phase and the address of its log.
        """
        if digest != self.digest():
            raise RuntimeError(
                f"image {digest[:12]} cannot be made again, since the code has changed: go back "
                "to the code of then, or start a new run"
            )
        if known := self.find(digest):
            return known
        try:
            self._have_repository()
            earlier = self._builds(digest)
            running = [each["id"] for each in earlier if each["buildStatus"] == "IN_PROGRESS"]
            ended = self._await_end(running[0] if running else self._start(digest, earlier))
        except (BotoCoreError, ClientError) as error:
            raise RuntimeError(self._refusal("the build", error)) from None
        built = self.find(digest)  # another build of this content may have been first
        if built is None:
            raise RuntimeError(_failure(digest, ended))
        return built

    @property
    def _name(self) -> str:
        return self._registry.repository.partition("/")[2]

    def _have_repository(self) -> None:
        try:
            self._ecr.create_repository(
                repositoryName=self._name,
                imageTagMutability="IMMUTABLE",
                imageScanningConfiguration={"scanOnPush": True},
            )
        except ClientError as error:
            if _code(error) not in _THERE:
                raise
            self._ecr.put_image_tag_mutability(
                repositoryName=self._name, imageTagMutability="IMMUTABLE"
            )
        self._ecr.put_lifecycle_policy(repositoryName=self._name, lifecyclePolicyText=_EXPIRY)

    def _builds(self, digest: str) -> list[dict[str, Any]]:
        """The project's newest builds of this content."""
        listed = self._codebuild.list_builds_for_project(
            projectName=self._config.project, sortOrder="DESCENDING"
        )
        if not (ids := listed.get("ids", [])[:_RECENT]):
            return []
        return [
            build
            for build in self._codebuild.batch_get_builds(ids=ids)["builds"]
            if _variable(build, "CONTENT_DIGEST") == digest
        ]

    def _upload(self, digest: str) -> str:
        """The source as an archive; its key."""
        key = f"ariadne/source/{digest}.zip"
        self._s3.put_object(
            Bucket=self._config.source_bucket, Key=key, Body=archive(self._source),
            ChecksumAlgorithm="SHA256",
        )  # fmt: skip
        return key

    def _start(self, digest: str, earlier: list[dict[str, Any]]) -> str:
        key = self._upload(digest)
        variables = {
            "BASE": self._registry.base,
            "LOCK": self._source.lock.name,
            "CONTENT_DIGEST": digest,
            "IMAGE": f"{self._registry.repository}:{_tag(digest)}",
            "REGISTRY": self._registry.host,
        }
        started = self._codebuild.start_build(
            projectName=self._config.project,
            # For some minutes CodeBuild would answer the same token with the build that has failed.
            idempotencyToken=digest_of([digest, sorted(build["id"] for build in earlier)]),
            sourceTypeOverride="S3",
            sourceLocationOverride=f"{self._config.source_bucket}/{key}",
            buildspecOverride=str(BUILDSPEC),
            privilegedModeOverride=True,  # Docker runs inside of the build
            timeoutInMinutesOverride=max(5, self._registry.build_timeout_s // 60),
            environmentVariablesOverride=[
                {"name": name, "value": value, "type": "PLAINTEXT"}
                for name, value in variables.items()
            ],
        )
        return started["build"]["id"]

    def _await_end(self, build_id: str) -> dict[str, Any]:
        """Follow its phases; one that takes too long is stopped."""
        deadline, told = time.monotonic() + self._registry.build_timeout_s, ""
        while True:
            (build,) = self._codebuild.batch_get_builds(ids=[build_id])["builds"]
            phase = build.get("currentPhase", "")
            if phase != told:
                _LOG.info("image: build %s: %s; log: %s", build_id, phase, _log_of(build))
                told = phase
            # `buildComplete` is not asked: the status says it and more.
            if build["buildStatus"] != "IN_PROGRESS":
                return build
            if time.monotonic() > deadline:
                self._codebuild.stop_build(id=build_id)
                return {**build, "buildStatus": "TIMED_OUT"}
            time.sleep(self._poll_s)

    def _refusal(self, what: str, error: Exception) -> str:
        said = str(error).splitlines()[0]
        return (
            f"{what} of {self._registry.repository}: {said}; look at the credentials, the region "
            f"{self._config.region} and the rights that docs/hyperpod.md lists"
        )


def archive(source: ImageSource) -> bytes:
    """The build's context as a zip file: the same files give the same bytes."""
    root = source.root
    files = [*source.files(), root / DOCKERFILE, root / BUILDSPEC]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted({*files}):
            out.writestr(zipfile.ZipInfo(str(path.relative_to(root)), _EPOCH), path.read_bytes())
    return buffer.getvalue()


def _failure(digest: str, build: dict[str, Any]) -> str:
    failed = [phase for phase in build.get("phases", []) if phase.get("phaseStatus") == "FAILED"]
    contexts = [each["message"] for phase in failed for each in phase.get("contexts", [])]
    phase = failed[0]["phaseType"] if failed else build.get("currentPhase", "its start")
    words = contexts[0].splitlines()[0][:300] if contexts and contexts[0] else "it says no more"
    return (
        f"image {digest[:12]} was not built: {build['buildStatus']} in {phase}: {words}; "
        f"log: {_log_of(build)}"
    )


def _variable(build: dict[str, Any], name: str) -> str | None:
    variables = build.get("environment", {}).get("environmentVariables", [])
    return next((each["value"] for each in variables if each["name"] == name), None)


def _log_of(build: dict[str, Any]) -> str:
    return build.get("logs", {}).get("deepLink") or "not yet there"


def _tag(digest: str) -> str:
    return digest[:40]


def _code(error: ClientError) -> str:
    return error.response["Error"]["Code"]
