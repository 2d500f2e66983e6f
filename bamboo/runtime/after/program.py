"""`python -m bamboo.runtime.after.program`: export, evaluate or sample what a run has trained; or
take what another program wrote as the weights that a job begins with.

Standard input: one JSON object {"do": "export", "evaluate" or "sample", "run": folder, "files": the
files of a state, "options": {...}}, or {"do": "take", "job", "source", "folder"}. Standard output:
one JSON object; standard error: lines of progress. Exit codes: 0 done, 2 not possible.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bamboo.config.tree import ClusterConfig
from bamboo.errors import InputError, NoDevice
from bamboo.runtime.after.evaluated import evaluate
from bamboo.runtime.after.exported import export
from bamboo.runtime.after.sampled import sample
from bamboo.runtime.after.trained import trained
from bamboo.runtime.check.stdout_answer import one_answer, tell_progress
from bamboo.runtime.check.verify import job_of_run
from bamboo.runtime.device.staging import HOST, place_of


def done(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request; see the top of the file. Raises InputError."""
    if asked["do"] == "take":
        from bamboo.runtime.after.taken import take  # it takes a second, which others need not

        return take(asked["job"], Path(asked["source"]), Path(asked["folder"]))
    run, options = Path(asked["run"]), dict(asked["options"])
    files = [Path(name) for name in asked["files"]]
    if asked["do"] == "export":
        options["folder"] = Path(options["folder"])
        return export(trained(run, files, HOST), **options)
    place = _place(job_of_run(run).cluster)
    found = trained(run, files, place)
    does = evaluate if asked["do"] == "evaluate" else sample
    return {"device": place.type, **does(found, place, tell_progress, **options)}


def _place(cluster: ClusterConfig) -> torch.device:
    """The device of the run, or the CPU where it is not here: then numbers differ by rounding."""
    try:
        return place_of(cluster)
    except NoDevice:
        return HOST


def main(_: list[str]) -> int:
    """The command; see the top of the file."""
    asked = json.loads(sys.stdin.read())
    with one_answer() as answer:
        try:
            result = done(asked)
        except InputError as error:
            answer({"error": str(error)})
            return error.exit_code
        answer(result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
