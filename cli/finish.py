"""The end of a run on disk: decision log, manifest of the final state, receipt.

A run that ends badly loses nothing either: everything that is known by then is written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from bamboo.checkpoint.final import read_final, stage_file, write_manifest
from bamboo.checkpoint.stopped import keep_final
from bamboo.config.tree import JobConfig
from bamboo.core.nodes import NodeStatus
from bamboo.core.state import Outcome
from bamboo.errors import InputError, StorageUnavailable
from bamboo.planner.value import per_usd_spent
from cli import sites, wiring
from cli.money import Bill, Rented
from cli.progress import Preemption, Progress, node_rows, status_body
from cli.run_status import job_of
from cli.runs import Part, RunFolder, parts_before, write_json
from cli.terms import Terms
from cli.views.preemption import noticed, preemption_line, short_preemption_line


def save_manifest(folder: RunFolder, progress: Progress, job: JobConfig) -> str:
    """Write `final/manifest.json` from the stages' files, where the run ended in order. In an
    account they are fetched first.

    Returns "", or a sentence that says why there is no manifest.
    """
    if progress.outcome not in (Outcome.DONE, Outcome.STOPPED, Outcome.BUDGET):
        return "no final state: the run did not end in order"
    if progress.steps_done == 0:
        return "no final state: no step was finished"
    stages, step = progress.state.grid.stages, progress.steps_done
    if _of_the_part_before(folder, step):
        return ""
    return _brought(folder, job, stages=stages, step=step)


def _of_the_part_before(folder: RunFolder, step: int) -> bool:
    """Whether the run ends where the part before it ended, because it was stopped before it took a
    step. Then that part's final state, which the resume put away, is the run's again."""
    before = list(parts_before(folder).values())
    if not before or folder.final.exists() or not before[-1].final_manifest.exists():
        return False
    if before[-1].read_json(before[-1].final_manifest).get("step") != step:
        return False
    before[-1].final.rename(folder.final)
    return True


def _brought(folder: RunFolder, job: JobConfig, *, stages: int, step: int) -> str:
    try:
        sites.bring_final(folder, job, stages=stages)
        lacking = [n for n in range(stages) if not (folder.final / stage_file(n)).exists()]
        if lacking:
            return (
                "no final state: the run ended before "
                f"{', '.join(f'stage {n}' for n in lacking)} had written it; "
                f"`bamboo resume {folder.id}` goes on from its newest checkpoint, if any"
            )
        write_manifest(folder.final, stages=stages, step=step)
    except StorageUnavailable as error:
        later = "" if job.cloud.provider == "local" else f"; `bamboo verify {folder.id}` fetches it"
        return f"no final state: {error}{later}"
    except InputError as error:
        return f"no final state: {error}"
    return ""


def bring_late(folder: RunFolder, receipt: Mapping[str, Any]) -> str:
    """Fetch the final state of a run in an account that has ended in order while its bucket was
    away. Returns why that is impossible, or "". Does nothing for a run of this machine."""
    job, ends = job_of(folder), (Outcome.DONE, Outcome.STOPPED, Outcome.BUDGET)
    if job.cloud.provider == "local" or receipt["outcome"] not in ends or not receipt["step"]:
        return ""
    stages = receipt.get("stages", job.cluster.stages)
    return _brought(folder, job, stages=stages, step=int(receipt["step"]))


def wrong_with_final(folder: RunFolder, *, step: int | None = None) -> str:
    """Why nothing can continue from the final state of a run, which is to be `step` steps in if
    that is given; "" where it can. In an account the state is fetched first if it is missing."""
    late = folder.receipt.exists() and not folder.final_manifest.exists()
    if late and (why := bring_late(folder, folder.read_json(folder.receipt))):
        return why
    try:
        final = read_final(folder.final)
    except InputError as error:
        return str(error)
    if step not in (None, final.step):
        return f"{folder.final} is of step {final.step}"
    return f"{folder.final / final.damaged[0]} is damaged" if final.damaged else ""


def keep_stopped(
    folder: RunFolder, progress: Progress, terms: Terms, receipt: dict[str, Any]
) -> str:
    """Make the final state of a stopped run a checkpoint, so that `bamboo resume` repeats no step,
    and name it in the receipt. Returns what went wrong, or "". A run with no steps left gets no
    checkpoint, and one that exists already stays."""
    stopped = progress.outcome in (Outcome.STOPPED, Outcome.BUDGET)
    if not stopped or not folder.final_manifest.exists() or progress.steps_done >= progress.steps:
        return ""
    if receipt["newest_checkpoint"] == progress.steps_done:
        return ""
    try:
        receipt["newest_checkpoint"] = keep_final(
            wiring.checkpoints_of(folder, terms.job),
            folder.final,
            run=folder.id,
            semantic_hash=terms.strategy.semantics.hash_at,
            stages=progress.state.grid.stages,
            generation=progress.state.era,
            layers=terms.layers,
            now_s=progress.now_s,
        )
    except (InputError, StorageUnavailable) as error:
        return f"the state of the stop could not be kept as a checkpoint: {error}"
    return ""


def receipt_body(
    progress: Progress,
    bill: Bill,
    *,
    samples_per_step: int,
    unigram_entropy_nats: float | None,
    final_note: str,
    part: Part | None = None,
    launched_s: float | None = None,
    beside: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of `receipt.json`, from which summary and receipt are printed. `part` is the part
    that ends; `wall_s` is the time of all parts together. `launched_s` is when the first part
    began, and `beside` the overheads."""
    usd = bill.usd
    part = part or Part(number=1, started_s=progress.started_at_s)
    passed_s = part.led_before_s + progress.now_s - part.started_s
    samples = progress.steps_done * samples_per_step
    return {
        "run": progress.run,
        "outcome": progress.outcome.value if progress.outcome else None,
        "exit_code": progress.outcome.exit_code if progress.outcome else 1,
        "sentence": progress.sentence,
        "started_s": part.started_s if launched_s is None else launched_s,
        "ended_s": progress.now_s,
        "wall_s": passed_s,
        "parts": part.number,
        "step": progress.steps_done,
        "steps": progress.steps,
        "first_loss": progress.first_loss,
        "last_loss": progress.loss,
        "mean_loss_of_last_10": progress.mean_loss_of_last_10,
        "unigram_entropy_nats": unigram_entropy_nats,
        "tokens": progress.tokens,
        "tokens_per_s": progress.tokens / passed_s if passed_s > 0 else 0.0,
        "tokens_per_usd": per_usd_spent(progress.tokens, usd),
        "samples": samples,
        "samples_per_s": samples / passed_s if passed_s > 0 else 0.0,
        "samples_per_usd": per_usd_spent(samples, usd),
        "final_note": final_note,
        "stages": progress.state.grid.stages,
        "newest_checkpoint": max((c.step for c in progress.state.checkpoints), default=None),
        "preemptions": [
            {
                "at_s": p.at_s,
                "node": p.node,
                "zone": p.zone,
                "slots": [str(s) for s in p.slots],
                "planned": p.planned,
                "noticed": noticed(p, progress),
                "step": p.step,
                "already_computed": p.already_computed,
                "recomputed": p.recomputed,
                "pause_s": p.pause_s,
                "parts_s": dict(p.parts_s),
                "line": preemption_line(p),
                "short": short_preemption_line(p, progress),
            }
            for p in progress.preemptions
        ],
        "reconfigurations": [reconfigured.body() for reconfigured in progress.reconfigured],
        "trace": None if progress.trace is None else asdict(progress.trace),
        "nodes": node_rows(progress),
        "bill": bill.to_body() | _with_beside(usd, beside),
        "status": status_body(progress),
    }


def with_taken(progress: Progress, rented: Iterable[Rented]) -> Progress:
    """The same progress, with the nodes that the cloud took when no node was left to report it.
    When the last nodes are lost together, no decision records their loss."""
    state, taken = progress.state, {item.instance: item for item in rented if item.interrupted}
    unseen = [node for node in state.nodes if node.status.live and node.instance in taken]
    lost = [
        Preemption(
            at_s=taken[node.instance].ended_at_s or progress.now_s,
            node=node.id,
            zone=node.zone,
            slots=() if state.assignment is None else state.assignment.owned_by(node.id),
            planned=False,
            sentence=f"the cloud took node {node.id}, and no node was left to write it down",
        )
        for node in unseen
    ]
    gone = state.with_nodes(*(replace(node, status=NodeStatus.GONE) for node in unseen))
    return replace(progress, state=gone, preemptions=(*progress.preemptions, *lost))


def _with_beside(usd: float, beside: Mapping[str, Any] | None) -> dict[str, Any]:
    """The overheads, and the total that the run's limit is compared with."""
    if beside is None:
        return {}
    return {"beside": dict(beside), "whole_usd": round(usd + float(beside["usd"]), 6)}


def save_receipt(folder: RunFolder, body: dict[str, Any]) -> None:
    """Write the receipt, then remove the endpoint. From here on the run has ended."""
    write_json(folder.receipt, body)
    folder.endpoint.unlink(missing_ok=True)
