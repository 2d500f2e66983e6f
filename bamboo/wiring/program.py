"""A process of ours that may read tokens in a bucket: `bamboo.wiring.program MODULE ARGUMENT…` runs
the module as `bamboo.loading` does, which starts this one."""

from importlib import import_module

from bamboo.loading import for_good
from bamboo.wiring import reads_buckets


def main(arguments: list[str]) -> int:
    """The command; its result is that of the module."""
    reads_buckets()
    with for_good():
        module = import_module(arguments[0])
    status: int = module.main(arguments[1:])
    return status
