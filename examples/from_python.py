"""Bamboo from Python: `.venv/bin/python examples/from_python.py [JOB.toml]`, about three minutes.

It plans a job, plays it on a made-up market, trains it here with the losses that the job orders,
and compares every bit with a calm training.
"""

import sys
from pathlib import Path

from bamboo import api

EXAMPLE = Path(__file__).parent / "gpt-local.toml"


def main(job: str | Path) -> None:
    planned = api.plan(job).planned
    print(f"{planned.plan.instances} instances, ${planned.usd_per_hour:.2f} an hour (modelled)")

    played = api.simulate(job, market="storm", hours=1, seeds=3)
    steps = [figures["bamboo"].steps for figures in played.runs]
    print(f"steps in a stormy hour, for three seeds: {steps} (simulated)")

    run = api.launch(job, note=print)
    receipt = run.wait(timeout_s=600, note=print)
    loss = run.metrics().loss
    print(f"{run.id}: {receipt['outcome']}, {len(receipt['preemptions'])} nodes lost")
    print(f"loss {loss[0]:.2f} to {loss[-1]:.2f}, ${receipt['bill']['usd']:.4f} (modelled)")

    print(f"equal to a calm training, bit for bit: {run.verify()['equal']}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [EXAMPLE])
