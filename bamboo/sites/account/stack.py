"""From the outputs of the stack in `terraform/` to the account file that jobs on EC2 read.

Rule: every key is checked before it is written. The file names a secret and never contains it, so a
value that does not look like a reference is refused without showing it.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bamboo.config.account import SECRET_ARN
from bamboo.errors import InputError
from bamboo.ids import BUCKET, REGION, STACK
from bamboo.named_files import read_bounded
from bamboo.sites.account import terraform

STDIN = "-"
_MOST_CHARACTERS = 1_000_000
_NAME = r"[\w.()/-]{1,128}"
OUTPUTS: dict[str, re.Pattern[str]] = {
    "region": REGION,
    "stack": STACK,
    "launch_template": re.compile(_NAME),
    "bucket": BUCKET,
    "store_secret": SECRET_ARN,
}
"""Output of the stack, which is also a key of `[cloud]` -> its form. The launch template has group
and profile of the workers; named next to it, they would limit a call to one pool."""
_ZONE, _SUBNET = re.compile(r"[a-z]{2,}(-[a-z0-9]+)+"), re.compile(r"subnet-[0-9a-z]+")
_HIDDEN = ("store_secret",)
HEADER = """\
# Written by `bamboo init` from the outputs of terraform/: what `[cloud]` is of every job with
# provider = "ec2" in this region that does not say it itself. Secrets are named, none is held.
"""


def read_outputs(source: str) -> Mapping[str, Any]:
    """The answer of `terraform output -json`: for the stack in this directory, from this file, or
    from standard input (`-`). Raises InputError."""
    if source == STDIN:
        text, name = sys.stdin.read(_MOST_CHARACTERS), "standard input"
    elif Path(source).is_dir():
        text, name = terraform.outputs(Path(source)), f"terraform in {source}"
    else:
        name = source
        try:
            text = read_bounded(Path(source), most=_MOST_CHARACTERS)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{source}: is no text; give what `terraform output -json` says"
            ) from error
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"{source}: {why}; name the directory of the stack, or a file with what "
                "`terraform output -json` says there"
            ) from error
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: is not JSON ({error}); give what `terraform output -json` says"
        ) from error
    if not isinstance(raw, dict) or not raw:
        raise InputError(f"{name}: there are no outputs; `bamboo init --apply` makes the stack")
    return raw


def cloud_of(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `[cloud]` from the outputs of a stack. Raises InputError for an output that is
    missing or malformed."""
    found: dict[str, Any] = {}
    for name, form in OUTPUTS.items():
        value = _value(outputs, name)
        if not isinstance(value, str) or not form.fullmatch(value):
            shown = "" if name in _HIDDEN else f" {value!r}"
            raise InputError(
                f"the output {name}{shown} is not what it should be; is this the stack of Bamboo?"
            )
        found[name] = value
    subnets = _value(outputs, "subnets")
    if not isinstance(subnets, dict) or not subnets:
        raise InputError(f"the output subnets {subnets!r} is no table of zones; apply it again")
    for zone, subnet in subnets.items():
        good = isinstance(subnet, str) and _SUBNET.fullmatch(subnet) and _ZONE.fullmatch(zone)
        if not good or not zone.startswith(found["region"]):
            raise InputError(
                f"the output subnets has {subnet!r} in {zone!r}, which is no subnet of a zone of "
                f"{found['region']}; apply it again"
            )
    found["zones"] = sorted(subnets)
    found["subnets"] = [{"zone": zone, "id": subnets[zone]} for zone in sorted(subnets)]
    return found


def _value(outputs: Mapping[str, Any], name: str) -> Any:
    output = outputs.get(name)
    if not isinstance(output, dict) or "value" not in output:
        raise InputError(
            f"there is no output {name}; `bamboo init --apply` brings the stack up to this release"
        )
    return output["value"]


def account_toml(cloud: Mapping[str, Any]) -> str:
    """The text of the account file. What `cloud_of` accepts needs no escapes."""
    lines = [HEADER, "[cloud]"]
    for name, value in cloud.items():
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    # A string of JSON is one of TOML, except for surrogate pairs and DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
