"""What all calls to AWS through boto3 share: its exceptions become ours, with a remedy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from cloud.ec2.errors import Meaning, meaning
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable

T = TypeVar("T")


class Unknown(CloudRefused):
    """The cloud does not know what was named, any more or yet."""


def of_the_known(names: Sequence[str], ask: Callable[[list[str]], list[T]]) -> list[T]:
    """The results for all names that are known. EC2 does nothing for a list with an unknown name,
    so after one the names are sent one by one. `ask` raises Unknown."""
    try:
        return ask(list(names))
    except Unknown:
        if len(names) == 1:
            return []
        return [found for name in names for found in of_the_known([name], ask)]


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
        match meaning(code, status=status_of(error)):
            case Meaning.GONE:
                raise Unknown(f"{action}: {message}") from error
            case Meaning.THROTTLED:
                raise CloudThrottled(f"{action}: {code}: {message}; ask again later") from error
            case Meaning.UNAVAILABLE:
                raise CloudUnavailable(f"{action}: {code}: {message}; ask again later") from error
        raise CloudRefused(f"{service} refuses {action}: {code}: {message}") from error
    except NoCredentialsError as error:
        raise CloudRefused(
            f"{action}: no AWS credentials were found; run `aws configure`, or {without_account}"
        ) from error
    except (BotoCoreError, ResponseParserError) as error:
        raise CloudUnavailable(f"{action} got no answer: {error}") from error


def code_and_message(error: ClientError) -> tuple[str, str]:
    """Code and message of the service's answer."""
    body = error.response.get("Error", {})
    return str(body.get("Code", "unknown")), str(body.get("Message", ""))


def status_of(error: ClientError) -> int:
    """The HTTP status of an answer; 0: it had none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
