"""What every call to AWS through boto3 has in common: its exceptions become ours, with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from cloud.ec2.errors import GONE_CODES, THROTTLED_CODES, UNAVAILABLE_CODES
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable


class Unknown(CloudRefused):
    """The cloud does not know (any more) what was named."""


@contextmanager
def translated(
    action: str,
    *,
    service: str = "EC2",
    without_account: str = 'set cloud.provider = "local"',
) -> Iterator[None]:
    """Turn the library's exceptions into ours, with what to do about them."""
    try:
        yield
    except ClientError as error:
        code, message = code_and_message(error)
        if code in GONE_CODES:
            raise Unknown(f"{action}: {message}") from error
        if code in THROTTLED_CODES:
            raise CloudThrottled(f"{action}: {code}: {message}; ask again later") from error
        if code in UNAVAILABLE_CODES:
            raise CloudUnavailable(f"{action}: {code}: {message}; ask again later") from error
        raise CloudRefused(f"{service} refuses {action}: {code}: {message}") from error
    except NoCredentialsError as error:
        raise CloudRefused(
            f"{action}: no AWS credentials were found; run `aws configure`, or {without_account}"
        ) from error
    except BotoCoreError as error:
        raise CloudUnavailable(f"{action} got no answer: {error}") from error


def code_and_message(error: ClientError) -> tuple[str, str]:
    """Of what the service answered."""
    body = error.response.get("Error", {})
    return str(body.get("Code", "unknown")), str(body.get("Message", ""))
