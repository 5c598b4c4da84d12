"""A store of named objects in S3: `s3://bucket/prefix`."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tasks.backends.protocols import check_key

_CONFIG = Config(
    connect_timeout=5, read_timeout=60, retries={"mode": "standard", "max_attempts": 8}
)
_PARTS = TransferConfig(multipart_threshold=16 * 2**20, multipart_chunksize=16 * 2**20)
_TAKEN = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
_ABSENT = ("NoSuchKey", "404")


def _plainly[**P, R](call: Callable[P, R]) -> Callable[P, R]:
    """What AWS refuses is one line, with the bucket and the next move."""

    @wraps(call)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except (BotoCoreError, ClientError, S3UploadFailedError) as error:
            said = str(error).splitlines()[0]
            raise RuntimeError(
                f"{args[0]}: {said}; look at the credentials, the bucket and the rights "
                "s3:GetObject, PutObject, DeleteObject and ListBucket"
            ) from None

    return ask


class S3Store:
    """Implements `ObjectStore` below a prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str, client: Any = None) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._s3 = client or boto3.client("s3", config=_CONFIG)

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    @_plainly
    def create(self, key: str, data: bytes) -> bool:
        try:
            self._s3.put_object(**self._at(key), Body=data, IfNoneMatch="*")
        except ClientError as error:
            if error.response["Error"]["Code"] in _TAKEN:
                return False
            raise
        return True

    @_plainly
    def read(self, key: str) -> bytes | None:
        try:
            return self._s3.get_object(**self._at(key))["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in _ABSENT:
                return None
            raise

    @_plainly
    def keys(self, prefix: str) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        found = (entry["Key"] for page in pages for entry in page.get("Contents", []))
        return sorted(key.removeprefix(self._prefix) for key in found)

    @_plainly
    def upload(self, key: str, path: Path) -> None:
        at = self._at(key)
        self._s3.upload_file(
            str(path), at["Bucket"], at["Key"],
            ExtraArgs={"ChecksumAlgorithm": "SHA256"}, Config=_PARTS,
        )  # fmt: skip

    @_plainly
    def download(self, key: str, path: Path) -> None:
        at = self._at(key)
        try:
            self._s3.download_file(at["Bucket"], at["Key"], str(path), Config=_PARTS)
        except ClientError as error:
            if error.response["Error"]["Code"] in _ABSENT:
                raise LookupError(f"{self} has no {key}") from None
            raise

    @_plainly
    def delete(self, key: str) -> None:
        self._s3.delete_object(**self._at(key))

    def _at(self, key: str) -> dict[str, str]:
        check_key(key)
        return {"Bucket": self._bucket, "Key": self._prefix + key}
