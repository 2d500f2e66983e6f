"""Terraform as a program: plan, apply, destroy and the outputs of the stack in a directory.

Rule: nothing is changed but by a plan that was shown. Whoever interrupts, and whatever deadline
passes, Terraform is asked once to stop and waited for: one that is killed loses track of what it
has made, and that bills.
"""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from bamboo.errors import InputError

LOOK_S, INIT_S, PLAN_S, CHANGE_S = 60.0, 600.0, 600.0, 2400.0
TO_STOP_S = 300.0
"""So long Terraform may take to stop in order: until its last call has answered."""
VARIABLES = "bamboo.auto.tfvars.json"
"""What was chosen for the stack: Terraform reads it by itself, whoever calls it there."""
_VARIABLE = re.compile(r'^variable\s+"([a-z0-9_]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a plan would do: resources by type; `gone` are addresses of those that it ends."""

    added: Mapping[str, int]
    changed: int
    gone: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """Whether all stands as it should."""
        return not (self.added or self.changed or self.gone)


def outputs(stack: Path) -> str:
    """The answer of `terraform output -json`. Raises InputError."""
    done = _asked(stack, "output", "-json", "-no-color", deadline_s=LOOK_S)
    if done.returncode != 0:
        raise InputError(
            f"`terraform output` in {stack} failed: {done.stderr.strip()[-300:]}; "
            "`bamboo init --apply` makes the stack"
        )
    return done.stdout


def choose(stack: Path, chosen: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    """Write down values of the stack's variables beside those chosen before; all of them. Raises
    InputError for a variable that the stack has not, or a file that is none."""
    sources = sorted(stack.glob("*.tf"))
    known = {name for source in sources for name in _VARIABLE.findall(source.read_text())}
    if not known:
        raise InputError(f"{stack}: there is no stack of Bamboo; name its directory, terraform/")
    unknown = sorted({name for name, _ in chosen} - known)
    if unknown:
        raise InputError(
            f"--var {unknown[0]}: the stack has no such variable; {stack}/variables.tf has "
            f"{', '.join(sorted(known))}"
        )
    path = stack / VARIABLES
    try:
        before = json.loads(path.read_text()) if path.exists() else {}
        values = dict(before) | dict(chosen)
        if chosen:
            path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: {error}; correct it, or delete it to begin anew") from error
    return values


def plan(stack: Path, file: Path, *, destroy: bool) -> Planned:
    """Make the plan `file` of what would make, or unmake, the stack. Raises InputError."""
    _watched(stack, "init", "-input=false", "-no-color", deadline_s=INIT_S, say=None)
    kind = ("-destroy",) if destroy else ()
    _watched(
        stack,
        "plan",
        *kind,
        "-input=false",
        "-no-color",
        f"-out={file}",
        deadline_s=PLAN_S,
        say=None,
    )
    done = _asked(stack, "show", "-json", "-no-color", str(file), deadline_s=LOOK_S)
    try:
        changes = json.loads(done.stdout)["resource_changes"] if done.returncode == 0 else None
        return _planned(changes)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the plan for {stack} cannot be read ({error}); see `terraform -chdir={stack} plan`"
        ) from error


def _planned(changes: Any) -> Planned:
    kinds = [(one["address"], one["type"], set(one["change"]["actions"])) for one in changes]
    return Planned(
        added=Counter(kind for _, kind, actions in kinds if "create" in actions),
        changed=sum("update" in actions for _, _, actions in kinds),
        gone=tuple(address for address, _, actions in kinds if "delete" in actions),
    )


def let_go(stack: Path, address: str, variable: str) -> None:
    """Make one resource be as `variable` = true says, and nothing else. Raises InputError."""
    _watched(
        stack,
        "apply",
        "-auto-approve",
        f"-target={address}",
        f"-var={variable}=true",
        "-input=false",
        "-no-color",
        deadline_s=CHANGE_S,
        say=None,
    )


def carry_out(stack: Path, file: Path, *, say: Callable[[str], None]) -> None:
    """Do what the plan `file` says; `say` has each line of it. Raises InputError with the last of
    them where it failed; what was made until then is in Terraform's state."""
    _watched(stack, "apply", "-input=false", "-no-color", str(file), deadline_s=CHANGE_S, say=say)


def _asked(
    stack: Path, verb: str, *arguments: str, deadline_s: float
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["terraform", f"-chdir={stack}", verb, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise _absent() from error
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"`terraform {verb}` in {stack} took longer than {deadline_s:g} s; see whether its "
            "state can be reached"
        ) from error


def _absent() -> InputError:
    return InputError(
        "terraform is not on the path; install it, or give a file with what "
        "`terraform output -json` said where it is"
    )


def _watched(
    stack: Path, verb: str, *arguments: str, deadline_s: float, say: Callable[[str], None] | None
) -> None:
    """Run it to its end in a session of its own, so that one interrupt of the terminal reaches it
    through us, and once."""
    try:
        process = subprocess.Popen(
            ["terraform", f"-chdir={stack}", verb, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"TF_IN_AUTOMATION": "1"},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise _absent() from error
    late = Timer(deadline_s, process.send_signal, (signal.SIGINT,))
    late.daemon = True
    late.start()
    lines: list[str] = []
    said = process.stdout
    assert said is not None
    try:
        for line in said:
            lines.append(line.rstrip())
            if say is not None and line.strip():
                say(line.rstrip())
        process.wait(TO_STOP_S)
    except BaseException:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=TO_STOP_S)
        raise
    finally:
        late.cancel()
        said.close()
    if process.returncode != 0:
        why = " ".join(" ".join(lines[-30:]).split())[-600:]
        raise InputError(
            f"`terraform {verb}` in {stack} failed: {why}; what it made until then is in its "
            "state: the same command again goes on, `bamboo init --destroy` takes it away"
        )
