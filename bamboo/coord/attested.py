"""What a run computes with, as the file `numerics.json` of its folder.

Rule: the launcher writes it as soon as the first worker has attested, and no later part of the run
changes it. So `verify` and `resume` can compare when neither store nor log is left. Runs of older
releases have these facts in `strategy.json`, where their semantic hash counts them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bamboo.core.numerics import facts_of
from bamboo.core.state import Attestation
from bamboo.errors import InputError
from bamboo.ids import NodeId
from bamboo.named_files import read_own
from bamboo.topology.strategy import Semantics

FILE = "numerics.json"
SCHEMA_VERSION = 1


def body_of(attested: Attestation) -> dict[str, Any]:
    """The content of the file, without its schema version."""
    facts = {fact.name: fact.value for fact in attested.numerics}
    return {"node": attested.node, "numerics": facts}


def attested_in(run: Path, semantics: Semantics) -> Attestation | None:
    """What the run in this folder computes with; None: no worker has attested so far. Raises
    InputError for a damaged file."""
    path = run / FILE
    try:
        text = read_own(path)
    except FileNotFoundError:
        known = semantics.numerics
        return Attestation(node=NodeId(""), numerics=facts_of(known)) if known else None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}; name the folder of a run") from error
    try:
        return _read(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is damaged: {error}; put it back as it was") from error


def known_in(run: Path, semantics: Semantics) -> Attestation:
    """As `attested_in`. Raises InputError also where nobody has attested."""
    attested = attested_in(run, semantics)
    if attested is None:
        raise InputError(
            f"{run / FILE}: is missing, so nobody knows what the run computed with; put it back"
        )
    return attested


def _read(raw: Any) -> Attestation:
    if not isinstance(raw, Mapping) or raw.get("schema_version") != SCHEMA_VERSION:
        found = raw.get("schema_version") if isinstance(raw, Mapping) else None
        raise ValueError(f"it has schema {found}, not {SCHEMA_VERSION}")
    facts, node = raw.get("numerics"), raw.get("node")
    if not isinstance(node, str) or not isinstance(facts, Mapping):
        raise ValueError("it names no node, or no facts")
    return Attestation(node=NodeId(node), numerics=facts_of(facts))
