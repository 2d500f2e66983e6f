"""The receipt of a run: what it did and what it cost, as `receipt.json` has it.

A run that ends badly loses nothing either: everything that is known by then is written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from bamboo.billing.money import Bill, Rented
from bamboo.core.state import NodeStatus
from bamboo.runs.preemption_lines import noticed, preemption_line, short_preemption_line
from bamboo.runs.progress import Preemption, Progress, node_rows, status_body
from bamboo.runs.run_folder import Part, RunFolder, write_json
from bamboo.value import per_usd_spent


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
    text = progress.tokens_per_step > 0
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
        "unit": progress.unit,
        "last_metrics": dict(progress.metrics),
        "tokens": progress.tokens if text else None,
        "tokens_per_s": (progress.tokens / passed_s if passed_s > 0 else 0.0) if text else None,
        "tokens_per_usd": per_usd_spent(progress.tokens, usd) if text else None,
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
