"""What a run computes with, written as its launcher would."""

import json
from pathlib import Path

from bamboo.config.tree import JobConfig
from bamboo.coord.attested import FILE, SCHEMA_VERSION, body_of
from bamboo.core.numerics import facts_of
from bamboo.core.state import Attestation
from bamboo.ids import NodeId
from bamboo.runtime.step.numerics import local_numerics


def write_attested(run: Path, job: JobConfig, **changes: object) -> None:
    """Write `numerics.json` of this machine into a run's folder, with some facts changed."""
    facts = facts_of(local_numerics(job) | changes)
    body = body_of(Attestation(node=NodeId("n00.1"), numerics=facts))
    (run / FILE).write_text(json.dumps({"schema_version": SCHEMA_VERSION, **body}))
