"""Tokens for EKS: presigned as AWS's Signature 4 says, renewed in time; AWS itself by moto."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import boto3
import botocore.auth
import certifi
import pytest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import UnauthorizedSSOTokenError
from moto import mock_aws
from moto.core import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.eks.models import eks_backends

from configs.kuberay import ApiConfig
from tasks.backends import kubernetes_api
from tasks.backends.eks_token import EksAccess
from tasks.backends.kubernetes_api import RAY_CLUSTERS, KubernetesApi, KubernetesError
from tests.kubernetes_api.server import KubernetesServer
from tests.samples import reason

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
# The key pair of AWS's own signing examples: it opens nothing.
KEY_ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

_END = "-----END CERTIFICATE-----\n"
AUTHORITY = certifi.contents().partition(_END)[0] + _END
"""Any certificate; over plain HTTP it vouches for nobody."""


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials of this machine, and no waiting for a machine's role."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """The time, for tokens and for signatures; its only element is now."""
    now = [NOW]
    # botocore reckons in naive UTC
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda *_, **__: now[0].replace(tzinfo=None)
    )
    return now


def access(clock: list[datetime], **credentials: str) -> EksAccess:
    given = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET} | credentials
    session = boto3.Session(region_name="us-west-2", **given)
    return EksAccess("mazes", "us-west-2", session, lambda: clock[0])


def url_in(token: str) -> str:
    prefix, _, encoded = token.partition(".")
    assert prefix == "k8s-aws-v1" and "=" not in encoded
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()


def signature_of(url: str, cluster: str) -> str:
    """Signature Version 4 of a presigned GET, worked out anew from its public description."""
    parts = urlsplit(url)
    query = sorted(parse_qsl(parts.query))
    given = dict(query)
    canonical_query = "&".join(
        f"{quote(key, safe='-_.~')}={quote(value, safe='-_.~')}"
        for key, value in query
        if key != "X-Amz-Signature"
    )
    headers = f"host:{parts.netloc}\nx-k8s-aws-id:{cluster}\n"
    body = hashlib.sha256(b"").hexdigest()
    request = "\n".join(
        ["GET", parts.path, canonical_query, headers, given["X-Amz-SignedHeaders"], body]
    )
    _, *scope = given["X-Amz-Credential"].split("/")
    to_sign = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            given["X-Amz-Date"],
            "/".join(scope),
            hashlib.sha256(request.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{SECRET}".encode()
    for word in scope:
        key = hmac.digest(key, word.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def test_a_token_is_a_signed_question_who_we_are(clock: list[datetime]) -> None:
    url = url_in(access(clock).token())
    parts, query = urlsplit(url), dict(parse_qsl(urlsplit(url).query))
    assert (parts.scheme, parts.netloc, parts.path) == (
        "https",
        "sts.us-west-2.amazonaws.com",
        "/",
    )
    assert query["Action"] == "GetCallerIdentity" and query["Version"] == "2011-06-15"
    assert query["X-Amz-Credential"] == f"{KEY_ID}/20260304/us-west-2/sts/aws4_request"
    assert query["X-Amz-Date"] == "20260304T050607Z" and query["X-Amz-Expires"] == "60"
    assert query["X-Amz-SignedHeaders"] == "host;x-k8s-aws-id"
    assert query["X-Amz-Signature"] == signature_of(url, "mazes")
    assert query["X-Amz-Signature"] != signature_of(url, "another-cluster")
    assert SECRET not in url


def test_a_token_of_a_role_carries_its_session(clock: list[datetime]) -> None:
    url = url_in(access(clock, aws_session_token="a session").token())
    assert dict(parse_qsl(urlsplit(url).query))["X-Amz-Security-Token"] == "a session"


def test_a_token_is_kept_while_it_is_good_and_renewed_before_it_ends(clock: list[datetime]) -> None:
    eks = access(clock)
    first = eks.token()
    clock[0] = NOW + timedelta(minutes=7, seconds=59)
    assert eks.token() == first
    clock[0] = NOW + timedelta(minutes=8)
    renewed = eks.token()
    assert renewed != first
    assert dict(parse_qsl(urlsplit(url_in(renewed)).query))["X-Amz-Date"] == "20260304T051407Z"


def test_a_token_outlives_no_credentials_that_boto3_has_not_renewed(clock: list[datetime]) -> None:
    """They have ten minutes left at least, or boto3 renews them before it signs."""
    eks = access(clock)
    first = eks.token()
    clock[0] = NOW + timedelta(seconds=RefreshableCredentials._mandatory_refresh_timeout - 1)
    assert eks.token() != first


def test_a_signing_that_fails_leaves_no_token_behind(clock: list[datetime]) -> None:
    class Late(boto3.Session):
        def get_credentials(self) -> Any:
            return None if clock[0] == NOW else Credentials(KEY_ID, SECRET)

    eks = EksAccess("mazes", "us-west-2", Late(region_name="us-west-2"), lambda: clock[0])
    assert "no AWS credentials" in reason(eks.token)
    assert "no AWS credentials" in reason(eks.token)
    clock[0] += timedelta(seconds=1)
    assert url_in(eks.token())


def test_credentials_that_cannot_be_renewed_are_one_line(clock: list[datetime]) -> None:
    class Ended(boto3.Session):
        def get_credentials(self) -> Any:
            raise UnauthorizedSSOTokenError

    eks = EksAccess("mazes", "us-west-2", Ended(region_name="us-west-2"), lambda: clock[0])
    told = reason(eks.token)
    assert "SSO" in told and "log in" in told and "\n" not in told


def test_without_credentials_it_says_so() -> None:
    eks = EksAccess("mazes", "us-west-2", boto3.Session(region_name="us-west-2"))
    assert "no AWS credentials" in reason(eks.token)


@mock_aws
def test_an_eks_profile_reaches_the_api_of_its_cluster_and_renews_its_token(
    clock: list[datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    boto3.client("eks", "us-west-2").create_cluster(
        name="mazes",
        roleArn="arn:aws:iam::123456789012:role/eks",
        resourcesVpcConfig={"subnetIds": ["subnet-1"]},
    )
    with KubernetesServer() as server:
        # moto invents an address and an authority of random bytes
        known = eks_backends[ACCOUNT]["us-west-2"].clusters["mazes"]
        known.endpoint = server.url
        known.certificateAuthority = {"data": base64.b64encode(AUTHORITY.encode()).decode()}
        seen: list[str] = []

        def accepts(token: str) -> bool:
            seen.append(token)
            query = dict(parse_qsl(urlsplit(url_in(token)).query))
            return query["X-Amz-Signature"] == signature_of(url_in(token), "mazes")

        server.accepts = accepts
        eks = EksAccess("mazes", "us-west-2", now=lambda: clock[0])
        assert eks.endpoint() == (server.url, AUTHORITY)
        monkeypatch.setattr(kubernetes_api, "EksAccess", lambda *_: eks)
        config = ApiConfig(access="eks", eks_cluster="mazes", region="us-west-2")
        api = KubernetesApi.connect("ariadne", config)
        assert api.get(RAY_CLUSTERS, "none") is None
        clock[0] += timedelta(minutes=14)
        assert api.get(RAY_CLUSTERS, "none") is None
        assert len(seen) == 2 and seen[0] != seen[1]


@mock_aws
def test_an_unknown_cluster_is_one_line(clock: list[datetime]) -> None:
    told = reason(access(clock).endpoint)
    assert "EKS cluster mazes in us-west-2" in told and "eks:DescribeCluster" in told


@mock_aws
def test_the_api_of_an_eks_profile_fails_with_one_line() -> None:
    config = ApiConfig(access="eks", eks_cluster="none", region="us-west-2")
    with pytest.raises(RuntimeError, match="EKS cluster none in us-west-2"):
        KubernetesApi.connect("ariadne", config)


def test_outside_of_a_cluster_there_is_no_account_of_a_pod() -> None:
    with pytest.raises(KubernetesError, match="access = 'in_cluster' finds no credentials"):
        KubernetesApi.connect("ariadne", ApiConfig())
