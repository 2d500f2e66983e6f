"""What an EC2 error code means for whoever asked. Pure.

Sources: the EC2 API reference, "Error codes for the Amazon EC2 API", and what karpenter and
sky treat as "this pool is out".
"""

from cloud.provider import RefusalKind

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
)
UNAVAILABLE_CODES = frozenset(
    {"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"}
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


def refusal_kind(code: str) -> RefusalKind:
    """What a refused launch means: another pool, later, or never."""
    if code in POOL_OUT_CODES:
        return RefusalKind.POOL_OUT
    if code in THROTTLED_CODES:
        return RefusalKind.THROTTLED
    return RefusalKind.REFUSED
