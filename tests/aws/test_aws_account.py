"""The account behind a run, against a server that speaks AWS's protocols and botocore's Stubber."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto.server import ThreadedMotoServer

from tasks.backends import aws_account
from tasks.backends.aws_account import AwsAccount
from tests.samples import reason

KIND = "ml.g7e.12xlarge"


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def session() -> boto3.Session:
    return boto3.Session("key", "secret", region_name="us-east-1")


def stubbed(session: boto3.Session, monkeypatch: pytest.MonkeyPatch, service: str) -> Stubber:
    """A client of the service that answers what it is told to."""
    client = session.client(service)
    monkeypatch.setattr(AwsAccount, "_client", lambda self, name: client)
    stub = Stubber(client)
    stub.activate()
    return stub


def quotas(*pairs: tuple[str, float], more: str = "") -> dict[str, Any]:
    listed = [{"QuotaName": name, "Value": value} for name, value in pairs]
    return {"Quotas": listed} | ({"NextToken": more} if more else {})


def test_the_credentials_say_who_we_are(
    moto_url: str, session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    assert AwsAccount("us-east-1", session).identity().startswith("arn:aws:sts::123456789012:")


def test_credentials_that_are_missing_or_over_give_one_line_with_the_way_out(
    session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stubbed(session, monkeypatch, "sts")
    stub.add_client_error("get_caller_identity", "ExpiredToken", "The token is expired")
    told = reason(AwsAccount("us-east-1", session).identity)
    assert "The token is expired" in told and told.endswith("(EKS Pod Identity for a pod)")


def test_a_region_that_does_not_answer_is_no_hang(
    session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert "Could not connect" in reason(AwsAccount("us-east-1", session).identity)
    assert aws_account._CONFIG.connect_timeout and aws_account._CONFIG.read_timeout


def test_a_quota_is_found_on_any_page(
    session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stubbed(session, monkeypatch, "service-quotas")
    first = quotas((f"{KIND} for training job usage", 9), more="next")
    stub.add_response("list_service_quotas", first, {"ServiceCode": "sagemaker"})
    stub.add_response(
        "list_service_quotas",
        quotas((f"{KIND} for cluster usage", 3)),
        {"ServiceCode": "sagemaker", "NextToken": "next"},
    )
    assert AwsAccount("us-east-1", session).quota(KIND) == 3
    stub.assert_no_pending_responses()


def test_an_account_without_a_quota_of_its_own_has_awss_default(
    session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stubbed(session, monkeypatch, "service-quotas")
    stub.add_response("list_service_quotas", quotas())
    default = quotas((f"{KIND} for cluster usage", 0))
    stub.add_response("list_aws_default_service_quotas", default)
    assert AwsAccount("us-east-1", session).quota(KIND) == 0
    stub.add_response("list_service_quotas", quotas())
    stub.add_response("list_aws_default_service_quotas", quotas())
    assert AwsAccount("us-east-1", session).quota(KIND) is None


def test_quotas_that_may_not_be_read_name_the_permission(
    session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stubbed(session, monkeypatch, "service-quotas")
    stub.add_client_error("list_service_quotas", "AccessDeniedException", "not authorized")
    told = reason(lambda: AwsAccount("us-east-1", session).quota(KIND))
    assert "not authorized" in told and "servicequotas:ListServiceQuotas" in told
