"""The AWS account behind a run: whose credentials these are, and what its quotas allow."""

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

_CONFIG = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard"})
_SERVICE = "sagemaker"
_QUOTA = "{instance_type} for cluster usage"
"""What HyperPod calls the quota of a kind of machine."""


class AwsAccount:
    """Implements `Account` with boto3's own search for credentials."""

    def __init__(self, region: str, session: boto3.Session | None = None) -> None:
        self._region = region
        self._session = session or boto3.Session(region_name=region)

    def identity(self) -> str:
        """Account and role, as STS knows them."""
        try:
            found = self._client("sts").get_caller_identity()
        except (BotoCoreError, ClientError) as error:
            raise RuntimeError(
                f"AWS refuses the credentials: {_one_line(error)}: log in, or give this process a "
                "role (EKS Pod Identity for a pod)"
            ) from None
        return f"{found['Arn']} in {self._region}"

    def quota(self, instance_type: str) -> float | None:
        """The account's own quota, or AWS's default where it has none of its own."""
        name = _QUOTA.format(instance_type=instance_type)
        try:
            client = self._client("service-quotas")
            for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
                for page in client.get_paginator(operation).paginate(ServiceCode=_SERVICE):
                    for quota in page["Quotas"]:
                        if quota["QuotaName"] == name:
                            return float(quota["Value"])
        except (BotoCoreError, ClientError) as error:
            raise RuntimeError(
                f"AWS does not tell its quotas: {_one_line(error)}: allow "
                "servicequotas:ListServiceQuotas and servicequotas:ListAWSDefaultServiceQuotas"
            ) from None
        return None

    def _client(self, service: str) -> Any:
        return self._session.client(service, region_name=self._region, config=_CONFIG)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
