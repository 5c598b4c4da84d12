"""The section of a profile that says how the image of the jobs is made and where it lies."""

from typing import Literal, Self

from pydantic import Field, model_validator

from configs.section import Section

_HOST = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:[0-9]{1,5})?"
_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"


class RegistryConfig(Section):
    """Where built images lie, and what they are built on."""

    repository: str = Field(pattern=rf"^{_HOST}(/{_PART})+$", max_length=255)
    """Registry and name, such as registry.example.com/ariadne/trainer; no tag."""
    base: str = Field(pattern=r"^[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}$", max_length=400)
    """What the Dockerfile starts from, by its digest: a tag is moved, a digest never."""
    build_timeout_s: int = Field(3600, ge=60, le=28_800)

    @property
    def host(self) -> str:
        return self.repository.partition("/")[0]

    @property
    def is_local(self) -> bool:
        """On this machine, where there is nobody to listen: plain HTTP will do."""
        return self.host.partition(":")[0] in ("127.0.0.1", "localhost")


class CodeBuildConfig(Section):
    """A project of AWS CodeBuild that builds the image next to its registry."""

    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")
    project: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{1,149}$")
    source_bucket: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$")
    """Gets the source as an archive named by its content."""


class ImageConfig(Section):
    """How the code comes to where it runs."""

    backend: Literal["environment", "buildah", "codebuild"] = "environment"
    """`environment`: a uv environment in a content-addressed folder, without containers.
    `buildah`: an OCI image, built here and pushed. `codebuild`: one that AWS builds."""
    registry: RegistryConfig | None = None
    """For `buildah` and `codebuild`."""
    codebuild: CodeBuildConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.backend == "environment") == (self.registry is not None):
            raise ValueError("the section image.registry belongs to buildah and codebuild")
        if (self.backend == "codebuild") != (self.codebuild is not None):
            raise ValueError("the section image.codebuild and its backend belong together")
        return self
