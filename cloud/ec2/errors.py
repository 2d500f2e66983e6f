"""What an EC2 error means for the caller: by its code, or else by its HTTP status. Pure.

An answer without a code of EC2 comes from a load balancer or a proxy in front of it. A 5xx says
nothing about the request, which may have arrived. Sources: the EC2 API reference, "Error codes for
the Amazon EC2 API", and what karpenter and sky treat as "this pool is out".
"""

from enum import StrEnum

from cloud.provider import RefusalKind


class Meaning(StrEnum):
    """pool-out: another pool may work · throttled: ask later · unavailable: whether it acted is not
    known · heard: the token belongs to another request · over: what the token had started has ended
    · credentials: these may not · gone: no such thing, any more or yet · refused: the request is
    wrong, repeating it changes nothing."""

    POOL_OUT = "pool-out"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    HEARD = "heard"
    OVER = "over"
    CREDENTIALS = "credentials"
    GONE = "gone"
    REFUSED = "refused"


POOL_OUT_CODES = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientFreeAddressesInSubnet",
        "MaxSpotInstanceCountExceeded",
        "MaxFleetCountExceeded",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
        "Unsupported",
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
    }
)
THROTTLED_CODES = frozenset(
    {"RequestLimitExceeded", "Throttling", "ThrottlingException", "EC2ThrottledException"}
    | {"RequestThrottled", "RequestThrottledException", "ThrottledException", "SlowDown"}
    | {"TooManyRequests", "TooManyRequestsException"}
)
UNAVAILABLE_CODES = frozenset(
    {"InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable"}
    | {"Unavailable", "RequestTimeout", "RequestTimeoutException"}
)
CREDENTIAL_CODES = frozenset(
    {"AuthFailure", "UnauthorizedOperation", "InvalidClientTokenId", "SignatureDoesNotMatch"}
    | {"ExpiredToken", "RequestExpired", "OptInRequired", "PendingVerification"}
)
GONE_CODES = frozenset(
    {
        "InvalidInstanceID.NotFound",
        "InvalidVolume.NotFound",
        "InvalidSpotInstanceRequestID.NotFound",
        "InvalidFleetId.NotFound",
    }
)


_BY_CODE = {
    **dict.fromkeys(POOL_OUT_CODES, Meaning.POOL_OUT),
    **dict.fromkeys(THROTTLED_CODES, Meaning.THROTTLED),
    **dict.fromkeys(UNAVAILABLE_CODES, Meaning.UNAVAILABLE),
    "IdempotentParameterMismatch": Meaning.HEARD,
    "IdempotentInstanceTerminated": Meaning.OVER,
    **dict.fromkeys(CREDENTIAL_CODES, Meaning.CREDENTIALS),
    **dict.fromkeys(GONE_CODES, Meaning.GONE),
}
_TOO_MANY_REQUESTS = 429
_REQUEST_TIMEOUT = 408
_SERVERS_FAULT = 500


def meaning(code: str, *, status: int = 0) -> Meaning:
    """What an answer means. `status` is its HTTP status; 0: it has none."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status == _TOO_MANY_REQUESTS:
        return Meaning.THROTTLED
    if status >= _SERVERS_FAULT or status == _REQUEST_TIMEOUT:
        return Meaning.UNAVAILABLE
    return Meaning.REFUSED


def refusal_kind(code: str, *, status: int = 0) -> RefusalKind:
    """What a refused launch means: another pool, later, or never. A pool for which the service
    failed is treated as out: other pools may work, and this one may in a while."""
    match meaning(code, status=status):
        case Meaning.POOL_OUT | Meaning.UNAVAILABLE:
            return RefusalKind.POOL_OUT
        case Meaning.THROTTLED:
            return RefusalKind.THROTTLED
        case _:
            return RefusalKind.REFUSED


NEW_TEMPLATE_CODES = frozenset(
    {
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.VersionNotFound",
    }
)


def names_what_is_new(code: str, message: str) -> bool:
    """Whether a launch was refused because of something new: its instance profile, which EC2 may
    not know for seconds after IAM has made it or given it a role (Terraform's provider for AWS
    handles the same), or its launch template, which not all of EC2 knows as soon as it is made."""
    return code in NEW_TEMPLATE_CODES or (
        code == "InvalidParameterValue"
        and any(words in message for words in ("IAM Instance Profile", "no associated IAM Roles"))
    )
