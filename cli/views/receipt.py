"""The end of a run as text: what it did, lost and cost; from the value of receipt.json."""

from collections.abc import Mapping
from typing import Any

from bamboo.quantities import count, duration, rate, size, usd
from bamboo.runs.reconfigured import reconfigured_line
from bamboo.value import MINIMUM_BILLED_S
from cli.echo import columns, paragraph
from cli.views.cost import beside_text, planned_lines
from cli.views.metrics import evaluation_words, metric_words
from cli.views.trace import trace_line
from cli.views.verify import in_segments


def summary_text(body: Mapping[str, Any]) -> str:
    """Steps, losses, preemptions with their sentences, work and memory per node."""
    parts, of_part = "", ""
    if (number := body.get("parts", 1)) > 1:
        parts, of_part = f" in {number} parts", f" in part {number}"
    lines = [
        f"{body['run']}: {body['outcome']} after step {body['step']}/{body['steps']} "
        f"in {duration(body['wall_s'])}{parts}: {body['sentence']}"
    ]
    first = body["first_loss"]
    last = body["last_loss"]
    mean = body["mean_loss_of_last_10"]
    if first is not None and last is not None and mean is not None:
        lines.append(f"  loss {first:.4f} -> {last:.4f}")
        entropy = body["unigram_entropy_nats"]
        line = f"  mean loss of the last {min(10, body['step'])} steps {mean:.4f}"
        if entropy is not None:
            relation = "below" if mean < entropy else "not below"
            line += f", {relation} the data's unigram entropy of {entropy:.4f} nats per token"
        lines.append(line)
    if metrics := metric_words(body.get("last_metrics", {})):
        lines.append(f"  in the last step: {', '.join(metrics)}")
    if evaluated := evaluation_words(body["status"].get("evaluation")):
        lines.append(f"  {evaluated}")
    if among := in_segments(body.get("segments", ())):
        lines.append(f"  {among}")
    if body["final_note"]:
        lines.append(f"  {body['final_note']}")
    lines += [f"  trouble: {sentence}" for sentence in body.get("troubles", ())]
    newest = body.get("newest_checkpoint")
    if newest is not None and body["outcome"] != "done":
        lines.append(
            f"  the newest checkpoint is of step {newest}: `bamboo resume {body['run']}` goes on "
            "from there"
        )
    if body["trace"] is not None:
        lines.append(f"  {trace_line(body['trace'])}")
    before = f"; `bamboo report {body['run']}` has those of all parts" if of_part else ""
    lines.append(f"  {count(len(body['preemptions']), 'preemption')}{of_part}{before}")
    lines += [f"    {p['line']}" for p in body["preemptions"]]
    if reconfigured := body["reconfigurations"]:
        again = sum(one["steps_again"] for one in reconfigured)
        lines.append(
            f"  {count(len(reconfigured), 'reconfiguration')}"
            + (f", {count(again, 'step')} done again after a restore" if again else "")
        )
        lines += [f"    {reconfigured_line(one)}" for one in reconfigured]
    rows = [("node", "zone", "F", "B", "FR", "BR", "tensors at peak")]
    rows += [
        (
            n["id"],
            n["zone"],
            *(str(n["operations"][op]) for op in ("F", "B", "FR", "BR")),
            size(n["tensor_bytes"]),
        )
        for n in body["nodes"]
    ]
    if len(rows) > 1:
        lines.append(
            f"  operations per node{of_part}; FR and BR: the redundant ones, of the neighbour's "
            "stage"
        )
        lines += columns(rows, indent=4, right=frozenset({2, 3, 4, 5, 6}))
    overruns = sum(n["overruns"] for n in body["nodes"])
    if overruns:
        lines.append(
            f"  {count(overruns, 'operation')} of the virtual device took longer than its figures"
        )
    return "\n".join(lines)


NOTES = {
    "free": "interrupted by the cloud in its first hour",
    "minimum": f"an instance is billed for {MINIMUM_BILLED_S} s at least",
}


def _note(instance: Mapping[str, Any]) -> str:
    if instance["billed_s"] == 0:
        return "free"
    return "minimum" if instance["seconds"] < MINIMUM_BILLED_S else ""


def receipt_text(body: Mapping[str, Any]) -> str:
    """The bill: a line for each instance, the sum compared with on-demand, tokens per dollar."""
    bill = body["bill"]
    word = "modelled dollars: no dollar was paid" if bill["modelled"] else "dollars"
    if not bill["instances"]:
        return "receipt: no instance was started, nothing is to be paid"
    rows = [("instance", "type", "zone", "market", "seconds", "billed", "$/h", "total", "")]
    rows += [
        (
            i["instance"],
            i["instance_type"],
            i["zone"],
            i["market"],
            f"{i['seconds']:.1f}",
            str(i["billed_s"]),
            f"{i['usd_per_hour']:.4f}",
            usd(i["usd"]),
            _note(i),
        )
        for i in bill["instances"]
    ]
    lines = [f"receipt ({word})"]
    lines += columns(rows, right=frozenset({4, 5, 6, 7}))
    notes = {_note(i) for i in bill["instances"]}
    lines += [f"  {note}: {words}" for note, words in NOTES.items() if note in notes]
    total = f"  total {usd(bill['usd'])} for {bill['instance_seconds']:,.0f} instance-seconds"
    if bill["on_demand_usd"]:
        share = bill["usd"] / bill["on_demand_usd"]
        total += f", {share:.0%} of {usd(bill['on_demand_usd'])} on-demand"
    lines.append(total)
    if beside := bill.get("beside"):
        lines += paragraph(f"{beside_text(beside)}; {usd(bill['whole_usd'])} with the instances")
    lines += planned_lines(body.get("planned"))
    if body["samples_per_usd"]:
        lines.append(
            f"  came to, over the whole run: {rate(body['samples_per_s'])} samples/s, "
            f"{rate(body['samples_per_usd'])} samples per dollar"
        )
    if body["tokens_per_usd"] and body["tokens"] and body["tokens_per_s"] is not None:
        lines.append(
            f"  {body['tokens']:,} tokens, {rate(body['tokens_per_usd'])} tokens per "
            f"dollar, {rate(body['tokens_per_s'])} tokens/s"
        )
    return "\n".join(lines)
