"""Names of things, as distinct types: short strings that are safe in paths and store keys."""

import re
from typing import NewType

from bamboo.errors import InputError

RunId = NewType("RunId", str)
NodeId = NewType("NodeId", str)
"""A member; a new id at every boot (instance id plus a boot counter)."""
InstanceId = NewType("InstanceId", str)
ZoneId = NewType("ZoneId", str)

NEWEST = "last"
"""The word for the newest run, so no run can have it as its id."""
_SAFE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""The name of a general-purpose bucket (AWS, "General purpose bucket naming rules"). It appears in
shell scripts, policies and addresses."""
REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
STACK = re.compile(r"[a-z][a-z0-9-]{1,30}")
"""The name of a stack, as `terraform/variables.tf` accepts it."""


def run_id(text: str) -> RunId:
    """Check that `text` can name a run: it becomes a directory, a tag and a store key.

    Raises InputError when it has other characters than a-z, 0-9 and '-', is too long, or is the
    word for another run.
    """
    if text == NEWEST:
        raise InputError(f"run id {text!r} means the newest run, whichever it is; take another")
    if not _SAFE.fullmatch(text):
        raise InputError(
            f"run id {text!r} is not usable; take 1 to 63 of a-z, 0-9 and '-', "
            "starting with a letter or digit"
        )
    return RunId(text)


def node_id(instance: InstanceId, boot: int) -> NodeId:
    """The id of the member that boots for the `boot`-th time on `instance`."""
    return NodeId(f"{instance}.{boot}")
