"""Bamboo from Python: `.venv/bin/python examples/from_python.py [JOB.toml]`, about three minutes.

It plans a job, plays it on a made-up market, trains it here with the losses that the job orders,
compares every bit with a calm training, and trains it a little longer.
"""

import sys
from pathlib import Path

import bamboo

EXAMPLE = Path(__file__).parent / "gpt-local.toml"


def main(job: str | Path) -> None:
    planned = bamboo.plan(job).planned
    print(f"{planned.plan.instances} instances, ${planned.usd_per_hour:.2f} an hour (modelled)")

    played = bamboo.simulate(job, market="storm", hours=1, seeds=3)
    steps = [figures["bamboo"].steps for figures in played.runs]
    print(f"steps in a stormy hour, for three seeds: {steps} (simulated)")

    run = bamboo.launch(job, note=print)
    receipt = run.wait(timeout_s=600, note=print)
    loss = run.metrics().loss
    print(f"{run.id}: {receipt['outcome']}, {len(receipt['preemptions'])} nodes lost")
    print(f"loss {loss[0]:.2f} to {loss[-1]:.2f}, ${receipt['bill']['usd']:.4f} (modelled)")
    print(f"equal to a calm training, bit for bit: {run.verify()['equal']}")

    run.resume(steps=len(loss) + 10, note=print)
    again = bamboo.open_run(run.id)  # as another program finds it
    again.wait(timeout_s=600, note=print)
    print(f"{again.id}: {len(again.metrics().loss)} steps, loss {again.metrics().loss[-1]:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [EXAMPLE])
