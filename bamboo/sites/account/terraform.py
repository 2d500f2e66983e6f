"""Terraform as a program: plan, apply, destroy and the outputs of the stack in a directory.

Rule: nothing is changed except by a plan that was shown. On an interrupt or a deadline, Terraform
is asked once to stop and waited for, because a killed Terraform loses track of what it has made,
which is billed on. Only one that does not stop within TO_STOP_S of its deadline is killed.
"""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from bamboo.errors import InputError
from bamboo.new_files import write_whole
from bamboo.private_files import users_umask
from bamboo.signals import held_back

LOOK_S = 60.0
INIT_S = 600.0
PLAN_S = 600.0
CHANGE_S = 2400.0
TO_STOP_S = 300.0
"""Terraform may take so long to stop in order: until its last call has answered."""
MOST_SAID = 500
AFTERWARDS = (
    "what it made until then is in its state: the same command again goes on, `bamboo init "
    "--destroy` takes it away"
)
VARIABLES = "bamboo.auto.tfvars.json"
"""The chosen values for the stack. Terraform reads this file by itself, in every call."""
_VARIABLE = re.compile(r'^variable\s+"([a-z0-9_]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a plan would do: resources by type; `gone` are the addresses of those that it
    destroys."""

    added: Mapping[str, int]
    changed: int
    gone: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """Whether everything is already as it should be."""
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


def with_chosen(stack: Path, chosen: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    """The values of the stack's variables that were kept before, with these. Raises InputError for
    a variable that the stack does not have, or a malformed file."""
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
        return dict(before) | dict(chosen)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: {error}; correct it, or delete it to start over") from error


def keep(stack: Path, values: Mapping[str, Any]) -> None:
    """Write these values for the next time, and for a person who calls Terraform there by hand.
    Raises InputError."""
    path = stack / VARIABLES
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    try:
        if values and not (path.exists() and path.read_text() == text):
            write_whole(path, text.encode(), mode=0o666 & ~users_umask())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; make room there") from error


def standing_region(stack: Path) -> str:
    """The region of this directory's stack by its state; "" where there is no stack."""
    done = _asked(stack, "output", "-json", "-no-color", deadline_s=LOOK_S)
    try:
        return str(json.loads(done.stdout)["region"]["value"]) if done.returncode == 0 else ""
    except (ValueError, KeyError, TypeError):
        return ""


def plan(
    stack: Path,
    file: Path,
    *,
    destroy: bool,
    values: Mapping[str, Any],
    note: Callable[[str], None],
) -> Planned:
    """Make the plan `file` that creates, or destroys, the stack with these values. Raises
    InputError."""
    chosen = file.with_suffix(".tfvars.json")
    write_whole(chosen, json.dumps(values).encode())
    _watched(stack, "init", "-input=false", "-no-color", deadline_s=INIT_S, note=note)
    kind = ("-destroy",) if destroy else ()
    words = ("-input=false", "-no-color", f"-var-file={chosen}", f"-out={file}")
    _watched(stack, "plan", *kind, *words, deadline_s=PLAN_S, note=note)
    done = _asked(stack, "show", "-json", "-no-color", str(file), deadline_s=LOOK_S)
    try:
        if done.returncode != 0:
            raise ValueError(f"it ended with {done.returncode}")
        return _planned(json.loads(done.stdout).get("resource_changes", []))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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


def let_go(stack: Path, address: str, variable: str, *, note: Callable[[str], None]) -> None:
    """Change one resource to what `variable` = true gives, and nothing else. Raises InputError."""
    _watched(
        stack,
        "apply",
        "-auto-approve",
        f"-target={address}",
        f"-var={variable}=true",
        "-input=false",
        "-no-color",
        deadline_s=CHANGE_S,
        note=note,
    )


def carry_out(stack: Path, file: Path, *, note: Callable[[str], None]) -> None:
    """Carry out the plan `file`. `note` is called with each line of the output. Raises InputError
    with the last of them where it failed. What was made until then is in Terraform's state."""
    words = ("-input=false", "-no-color", str(file))
    _watched(stack, "apply", *words, deadline_s=CHANGE_S, note=note, aloud=True)


def _asked(
    stack: Path, verb: str, *arguments: str, deadline_s: float
) -> subprocess.CompletedProcess[str]:
    with _started(stack, verb, *arguments, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            raise InputError(
                f"`terraform {verb}` in {stack} took longer than {deadline_s:g} s; see whether its "
                "state can be reached"
            ) from error
        finally:
            _end_all_of(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _absent() -> InputError:
    return InputError(
        "terraform is not on the path; install it, or give a file with what "
        "`terraform output -json` said where it is"
    )


def _end_all_of(process: "subprocess.Popen[str]") -> None:
    """End it if it exists, and the processes that it started, which would outlive it: a provider is
    a process of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _started(
    stack: Path, verb: str, *arguments: str, stderr: int = subprocess.STDOUT
) -> "subprocess.Popen[str]":
    """Start it in a session of its own."""
    try:
        return subprocess.Popen(
            ["terraform", f"-chdir={stack}", verb, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"TF_IN_AUTOMATION": "1"},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise _absent() from error


def _watched(
    stack: Path,
    verb: str,
    *arguments: str,
    deadline_s: float,
    note: Callable[[str], None],
    aloud: bool = False,
) -> None:
    """Run it to its end in a session of its own, so that an interrupt from the terminal reaches it
    only through us, once. With `aloud`, `note` is called with its lines."""
    with ExitStack() as held:
        held.enter_context(held_back())
        process = _started(stack, verb, *arguments)
        ends = (
            Timer(deadline_s, process.send_signal, (signal.SIGINT,)),
            Timer(deadline_s + TO_STOP_S, _end_all_of, (process,)),
        )
        for end in ends:
            end.daemon = True
            end.start()
        lines: list[str] = []
        said = process.stdout
        assert said is not None
        try:
            held.close()  # raises what was held back
            for line in said:
                lines.append(line.rstrip())
                if aloud and line.strip():
                    note(f"  {line.rstrip()}")
            process.wait(TO_STOP_S)
        except BaseException:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            note(f"terraform {verb} was asked to stop; its last call has {TO_STOP_S:g} s to end")
            try:
                process.communicate(timeout=TO_STOP_S)
            except subprocess.TimeoutExpired:
                note(f"terraform is at work still, as process {process.pid}; let it end first")
            if verb == "apply":
                note(AFTERWARDS)
            raise
        finally:
            for end in ends:
                end.cancel()
            said.close()
            if process.returncode is not None:
                _end_all_of(process)
    if process.returncode != 0:
        then = AFTERWARDS if verb == "apply" else "nothing was changed"
        raise InputError(f"`terraform {verb}` in {stack} failed: {_why(lines)}; {then}")


def _why(lines: Sequence[str]) -> str:
    """The end of its output, from its first error on, without its frames."""
    text = " ".join(" ".join(lines[-60:]).replace("\u2502", " ").split())
    at = text.find("Error: ")
    return text[at:][:MOST_SAID] if at >= 0 else text[-MOST_SAID:]
