"""Images that AWS builds: moto's server over HTTP for what it has, botocore's Stubber for faults.

Moto builds nothing: a build of it succeeds at the second look and pushes no image, so the tests
push one themselves where a real build would.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.stub import ANY, Stubber
from moto.server import ThreadedMotoServer

from configs.digests import digest_of
from configs.image import CodeBuildConfig, RegistryConfig
from tasks.backends.codebuild import CodeBuild, archive
from tasks.backends.image_source import ImageSource
from tests.samples import reason

REGION = "us-west-2"
REPOSITORY = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/ariadne/trainer"
REGISTRY = RegistryConfig(repository=REPOSITORY, base=f"python@sha256:{'b' * 64}")
CONFIG = CodeBuildConfig(region=REGION, project="ariadne", source_bucket="maze-source")
BUILD = "ariadne:1"
LINK = "https://console.aws.example/log"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    trainer = tmp_path / "containers" / "trainer"
    trainer.mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "schema.py").write_text("STEPS = 1\n")
    for name in ("Dockerfile", "buildspec.yml", "requirements.lock"):
        (trainer / name).write_text("# nothing\n")
    return tmp_path


class Aws:
    """Clients of moto's server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        if service not in self.clients:
            self.clients[service] = boto3.client(
                service, REGION, endpoint_url=self.url,
                aws_access_key_id="k", aws_secret_access_key="s",
            )  # fmt: skip
        return self.clients[service]

    def push(self, tag: str) -> str:
        """An image in the repository, as a build pushes it; its digest."""
        config = hashlib.sha256(tag.encode()).hexdigest()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
                "config": {"mediaType": "x", "size": 1, "digest": f"sha256:{config}"},
                "layers": [],
            }
        )
        pushed = self.client("ecr").put_image(
            repositoryName="ariadne/trainer", imageManifest=manifest, imageTag=tag
        )
        return pushed["image"]["imageId"]["imageDigest"]


@pytest.fixture
def aws() -> Iterator[Aws]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = Aws(f"http://{host}:{port}")
    httpx.post(f"{found.url}/moto-api/reset", timeout=10).raise_for_status()
    found.client("s3").create_bucket(
        Bucket=CONFIG.source_bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    found.client("codebuild").create_project(
        name="ariadne",
        source={"type": "S3", "location": "maze-source/none.zip"},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={
            "type": "LINUX_CONTAINER", "image": "aws/codebuild/standard:7.0",
            "computeType": "BUILD_GENERAL1_LARGE",
        },
        serviceRole="arn:aws:iam::123456789012:role/build",
    )  # fmt: skip
    try:
        yield found
    finally:
        server.stop()


def builder(project: Path, aws: Aws) -> CodeBuild:
    return CodeBuild(REGISTRY, CONFIG, ImageSource(root=project), aws.client, poll_s=0)


def test_a_build_puts_its_source_by_content_and_makes_a_repository_that_keeps_its_word(
    project: Path, aws: Aws
) -> None:
    made = builder(project, aws)
    digest = made.digest()
    assert made.find(digest) is None  # there is no repository yet
    said = reason(lambda: made.build(digest, force=False))  # moto pushes nothing
    assert said.startswith(f"image {digest[:12]} was not built: SUCCEEDED in ")
    (listed,) = aws.client("s3").list_objects_v2(Bucket="maze-source")["Contents"]
    assert listed["Key"] == f"ariadne/source/{digest}.zip"
    ecr = aws.client("ecr")
    (repository,) = ecr.describe_repositories()["repositories"]
    assert repository["repositoryName"] == "ariadne/trainer"
    assert repository["imageTagMutability"] == "IMMUTABLE"
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}
    policy = ecr.get_lifecycle_policy(repositoryName="ariadne/trainer")["lifecyclePolicyText"]
    assert json.loads(policy)["rules"][0]["selection"]["tagStatus"] == "untagged"


def test_what_is_pushed_is_found_by_content_and_goes_by_its_digest(project: Path, aws: Aws) -> None:
    made = builder(project, aws)
    digest = made.digest()
    reason(lambda: made.build(digest, force=False))
    pushed = aws.push(digest[:40])
    for _ in range(2):
        image = made.build(digest, force=True)
        assert image.reference == f"{REPOSITORY}@{pushed}"
    assert len(aws.client("codebuild").list_builds()["ids"]) == 1
    (project / "configs" / "schema.py").write_text("STEPS = 2\n")
    assert made.find(made.digest()) is None
    assert "cannot be made again" in reason(lambda: made.build(digest, force=False))


def test_an_archive_is_the_same_whenever_its_files_were_written(project: Path) -> None:
    import os

    first = archive(ImageSource(root=project))
    for path in project.rglob("*"):
        os.utime(path, (1, 1))
    assert archive(ImageSource(root=project)) == first
    (project / "configs" / "schema.py").write_text("STEPS = 2\n")
    assert archive(ImageSource(root=project)) != first


def a_build(name: str, status: str, digest: str) -> dict[str, Any]:
    variables = [{"name": "CONTENT_DIGEST", "value": digest}]
    machine = {"type": "LINUX_CONTAINER", "image": "i", "computeType": "BUILD_GENERAL1_LARGE"}
    environment = {**machine, "environmentVariables": variables}
    return {"id": name, "buildStatus": status, "environment": environment}


class Stubbed:
    """A builder whose AWS says what the test queues, in this order."""

    def __init__(self, project: Path, **registry: Any) -> None:
        self.stubs: dict[str, Stubber] = {}
        known = REGISTRY.model_copy(update=registry)
        self.builder = CodeBuild(known, CONFIG, ImageSource(root=project), self.client, poll_s=0)
        self.digest = self.builder.digest()

    def client(self, service: str) -> Any:
        client = boto3.client(service, REGION, aws_access_key_id="k", aws_secret_access_key="s")
        self.stubs[service] = Stubber(client)
        self.stubs[service].activate()
        return client

    def absent(self) -> None:
        self.stubs["ecr"].add_client_error("describe_images", "ImageNotFoundException")

    def present(self) -> None:
        found = {"imageDetails": [{"imageDigest": f"sha256:{'d' * 64}"}]}
        self.stubs["ecr"].add_response("describe_images", found)

    def repository(self, *, is_there: bool = False) -> None:
        ecr = self.stubs["ecr"]
        if is_there:
            ecr.add_client_error("create_repository", "RepositoryAlreadyExistsException")
            ecr.add_response("put_image_tag_mutability", {})
        else:
            ecr.add_response("create_repository", {})
        ecr.add_response("put_lifecycle_policy", {})

    def earlier(self, *statuses: str) -> list[str]:
        """Builds of this content, and one of another; the ids of the former."""
        codebuild, ids = self.stubs["codebuild"], [f"ariadne:{n}" for n in range(len(statuses))]
        asked = {"projectName": "ariadne", "sortOrder": "DESCENDING"}
        listed = {"ids": [*ids, "ariadne:other"]} if ids else {}
        codebuild.add_response("list_builds_for_project", listed, asked)
        if ids:
            builds = [a_build(*each, self.digest) for each in zip(ids, statuses, strict=True)]
            builds.append(a_build("ariadne:other", "IN_PROGRESS", "another"))
            codebuild.add_response("batch_get_builds", {"builds": builds})
        return ids

    def started(self, earlier: Sequence[str] = ()) -> None:
        self.stubs["s3"].add_response("put_object", {})
        asked = {
            "projectName": "ariadne",
            "idempotencyToken": digest_of([self.digest, sorted(earlier)]),
            "sourceTypeOverride": "S3",
            "sourceLocationOverride": f"maze-source/ariadne/source/{self.digest}.zip",
            "buildspecOverride": "containers/trainer/buildspec.yml",
            "privilegedModeOverride": True,
            "timeoutInMinutesOverride": ANY,
            "environmentVariablesOverride": ANY,
        }
        self.stubs["codebuild"].add_response("start_build", {"build": {"id": BUILD}}, asked)

    def ends(self, status: str, message: str = "") -> None:
        failed = {"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [{"message": message}]}
        build = {
            "id": BUILD,
            "buildStatus": status,
            "currentPhase": "COMPLETED",
            "logs": {"deepLink": LINK},
            "phases": [failed] if message else [],
        }
        self.stubs["codebuild"].add_response("batch_get_builds", {"builds": [build]})

    def build(self) -> Any:
        return self.builder.build(self.digest, force=False)

    def all_was_asked(self) -> None:
        for stub in self.stubs.values():
            stub.assert_no_pending_responses()


@pytest.mark.parametrize("status", ["FAILED", "FAULT", "STOPPED", "TIMED_OUT"])
def test_a_build_that_ends_otherwise_names_its_phase_its_words_and_its_log(
    project: Path, status: str
) -> None:
    aws = Stubbed(project)
    aws.absent(), aws.repository(is_there=True), aws.earlier(), aws.started()
    aws.ends("IN_PROGRESS"), aws.ends(status, "COMMAND_EXECUTION_ERROR: docker build\nmore")
    aws.absent()
    assert reason(aws.build) == (
        f"image {aws.digest[:12]} was not built: {status} in BUILD: COMMAND_EXECUTION_ERROR: "
        f"docker build; log: {LINK}"
    )
    aws.all_was_asked()


def test_a_build_whose_tag_another_one_has_pushed_first_finds_that_image(project: Path) -> None:
    aws = Stubbed(project)
    (
        aws.absent(),
        aws.repository(),
        aws.earlier(),
        aws.started(),
        aws.ends("FAILED", "tag exists"),
        aws.present(),
    )
    assert aws.build().reference.endswith(f"@sha256:{'d' * 64}")
    aws.all_was_asked()


def test_a_build_that_runs_already_is_followed_and_not_doubled(project: Path) -> None:
    aws = Stubbed(project)
    aws.absent(), aws.repository(is_there=True), aws.earlier("FAILED", "IN_PROGRESS")
    aws.ends("SUCCEEDED"), aws.present()
    assert aws.build().reference.endswith(f"@sha256:{'d' * 64}")
    aws.all_was_asked()


def test_after_a_build_that_failed_another_one_is_asked_for(project: Path) -> None:
    aws = Stubbed(project)
    aws.absent(), aws.repository(is_there=True)
    aws.started(aws.earlier("FAILED", "STOPPED"))
    aws.ends("SUCCEEDED"), aws.present()
    assert aws.build().reference
    aws.all_was_asked()


def test_a_build_that_takes_too_long_is_stopped(project: Path) -> None:
    aws = Stubbed(project, build_timeout_s=0)
    aws.absent(), aws.repository(), aws.earlier(), aws.started(), aws.ends("IN_PROGRESS")
    aws.stubs["codebuild"].add_response("stop_build", {}, {"id": BUILD})
    aws.absent()
    assert "was not built: TIMED_OUT in COMPLETED: it says no more" in reason(aws.build)
    aws.all_was_asked()


@pytest.mark.parametrize("code", ["AccessDeniedException", "ThrottlingException"])
def test_a_refusal_is_one_line_with_the_next_move(project: Path, code: str) -> None:
    aws = Stubbed(project)
    aws.absent(), aws.repository(), aws.earlier()
    aws.stubs["s3"].add_response("put_object", {})
    aws.stubs["codebuild"].add_client_error("start_build", code, "no")
    said = reason(aws.build)
    assert f"({code})" in said and "look at the credentials" in said and "\n" not in said
    aws.stubs["ecr"].add_client_error("describe_images", code, "no")
    assert "ecr:DescribeImages" in reason(lambda: aws.builder.find(aws.digest))


def test_throttled_calls_are_repeated_by_the_client() -> None:
    made = CodeBuild(REGISTRY, CONFIG, ImageSource())
    for client in (made._ecr, made._s3, made._codebuild):
        assert client.meta.config.retries["mode"] == "standard"
        assert client.meta.config.retries["total_max_attempts"] == 6
