"""Access to an EKS cluster by AWS credentials: its address, and tokens that EKS takes.

A token is a presigned call of STS: EKS makes that call and learns who we are. It takes a token for
15 minutes from its signing, unless the credentials that signed it end before. The temporary ones
of a role are renewed by boto3 ten minutes before their end, so a token is used for less than that.
"""

import base64
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.signers import RequestSigner

_PREFIX = "k8s-aws-v1."
_CLUSTER_HEADER = "x-k8s-aws-id"
_LIFETIME = timedelta(minutes=10)
_MARGIN = timedelta(minutes=2)
"""For clocks that differ and for calls that take their time."""
_URL_EXPIRES_S = 60
_CONFIG = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard"})


class EksAccess:
    """Endpoint and tokens of one cluster, from boto3's own search for credentials."""

    def __init__(
        self,
        cluster: str,
        region: str,
        session: boto3.Session | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._session = session or boto3.Session(region_name=region)
        self._region = region
        self._now = now
        self._token = ""
        self._until = datetime.min.replace(tzinfo=UTC)
        self._lock = threading.Lock()

    def endpoint(self) -> tuple[str, str]:
        """URL and certificate authority (PEM) of the API.

        Raises:
            RuntimeError: AWS does not say; one line.
        """
        client = self._session.client("eks", region_name=self._region, config=_CONFIG)
        try:
            found = client.describe_cluster(name=self._cluster)["cluster"]
        except (BotoCoreError, ClientError) as error:
            raise RuntimeError(
                f"EKS cluster {self._cluster} in {self._region}: {error}; the credentials need "
                "eks:DescribeCluster and an access entry of the cluster"
            ) from None
        return found["endpoint"], base64.b64decode(found["certificateAuthority"]["data"]).decode()

    def token(self) -> str:
        """A token with some minutes left.

        Raises:
            RuntimeError: there are no AWS credentials, or they have ended; one line.
        """
        with self._lock:
            now = self._now()
            if now >= self._until:
                self._token = self._sign()
                self._until = now + _LIFETIME - _MARGIN
            return self._token

    def _sign(self) -> str:
        try:
            url = self._presigned()
        except BotoCoreError as error:
            raise RuntimeError(
                f"no AWS credentials: {error}; log in, or give this process a role "
                "(cluster.kuberay.api)"
            ) from None
        return _PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    def _presigned(self) -> str:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        client = self._session.client("sts", region_name=self._region, config=_CONFIG)
        signer = RequestSigner(
            client.meta.service_model.service_id,
            self._region,
            "sts",
            "v4",
            credentials,
            self._session.events,
        )
        request = {
            "method": "GET",
            "url": f"{client.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {_CLUSTER_HEADER: self._cluster},
            "context": {},
        }
        return signer.generate_presigned_url(
            request, region_name=self._region, expires_in=_URL_EXPIRES_S, operation_name=""
        )
