"""SkyPilot's ranking of instance types and that of `bamboo cost`, for a job and a price list.

    python -m benchmarks.beside_skypilot [--job examples/gpt2-xl-300usd.toml] [--seeds 6]

SkyPilot's optimizer is asked for as many nodes of one GPU as the job has stages, on spot or on
demand, over the types of our catalogue that have one GPU and a spot price. It ranks by dollars per
hour, as one does who only knows prices. `bamboo cost` is asked for each of these types: how many
nodes of it hold the model, how fast they are, what preemptions cost, and so how many samples a
dollar buys (all modelled or simulated, as its own text says). The prices are the same on both
sides. SkyPilot needs an interpreter of its own: benchmarks/peers/setup.sh makes it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bamboo.config.catalogue import installed_catalogue
from bamboo.config.load import load_job
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from benchmarks.measuring.options import at_least, job_file, parsed
from benchmarks.measuring.report import command_of, write_result
from benchmarks.peers.processes import missing

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "gpt2-xl-300usd.toml"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
SCRIPT = Path(__file__).parent / "peers" / "skypilot_ranking.py"
STUCK_S = 300.0


def candidates(catalogue: Catalogue) -> list[InstanceType]:
    """Types that both can rent: one GPU, and a spot price."""
    return [
        one
        for one in catalogue.types.values()
        if one.gpus == 1 and one.spot_usd_per_hour is not None and one.vcpus
    ]


def ours(job: Path, name: str, seeds: int, home: Path) -> dict[str, Any] | None:
    """The best simulated option of a type on spot; None where nothing fits."""
    command = [sys.executable, "-m", "cli.main", "cost", str(job), "--json", "--rows", "4"]
    done = subprocess.run(
        [*command, "--type", name, "--seeds", str(seeds)],
        env={**os.environ, "BAMBOO_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=STUCK_S,
    )
    if not done.stdout:
        print(f"{name}: {done.stderr.strip()[-200:]}", flush=True)
        return None
    played = [
        option
        for option in json.loads(done.stdout)["options"]
        if option["market"] == "spot" and option.get("simulated")
    ]
    if not played:
        return None
    return dict(max(played, key=lambda option: option["simulated"]["samples_per_usd"]))


def theirs(python: Path, types: list[dict[str, Any]], nodes: int) -> list[dict[str, Any]]:
    """SkyPilot's ranking. Raises RuntimeError with the end of its output."""
    with tempfile.TemporaryDirectory(prefix="bamboo-sky-") as home:
        done = subprocess.run(
            [str(python), str(SCRIPT)],
            input=json.dumps({"nodes": nodes, "types": types}),
            env={**os.environ, "HOME": home, "SKY_RUNTIME_DIR": home},
            capture_output=True,
            text=True,
            check=False,
            timeout=STUCK_S,
        )
    if done.returncode != 0:
        raise RuntimeError(f"SkyPilot ended with {done.returncode}: {done.stderr[-600:]}")
    return list(json.loads(done.stdout.splitlines()[-1]))


def rows_of(ranked: list[dict[str, Any]], found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each spot choice of SkyPilot's, in its order, with our rank among these types."""
    names = [one["type"] for one in ranked if one["spot"]]
    worth = {name: found[name]["simulated"]["samples_per_usd"] for name in names if name in found}
    order = sorted(worth, key=lambda name: -worth[name])
    return [
        {
            "type": name,
            "skypilot_rank": number,
            "skypilot_usd_per_hour": next(
                one["usd_per_hour"] for one in ranked if one["spot"] and one["type"] == name
            ),
            "our_rank": order.index(name) + 1 if name in worth else None,
            "our_option": found[name]["option"] if name in found else None,
            "our_nodes": found[name]["nodes"] if name in found else None,
            "our_usd_per_hour": found[name]["usd_per_hour"] if name in found else None,
            "samples_per_usd": worth.get(name),
        }
        for number, name in enumerate(names, start=1)
    ]


def print_rows(rows: list[dict[str, Any]], nodes: int) -> None:
    print(
        f"\n{'SkyPilot':>8} {'type':12} {f'$/h of {nodes}':>9} {'ours':>5} {'nodes':>5} "
        f"{'$/h':>6} {'samples per $':>13}  our option of the type"
    )
    for row in rows:
        ours_text = (
            f"{row['our_rank']:5d} {row['our_nodes']:5d} {row['our_usd_per_hour']:6.2f} "
            f"{row['samples_per_usd']:13,.0f}  {row['our_option']}"
            if row["our_rank"]
            else f"{'-':>5} does not fit"
        )
        print(
            f"{row['skypilot_rank']:8d} {row['type']:12} {row['skypilot_usd_per_hour']:9.2f} "
            f"{ours_text}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--job", type=job_file, default=JOB)
    parser.add_argument("--seeds", type=at_least(1), default=6)
    parser.add_argument("--peers-python", type=Path, help="where SkyPilot is; by default ours")
    arguments = parsed(parser)
    peers = arguments.peers_python or PEERS
    if not peers.exists():
        print(missing())
        return 0
    nodes = load_job(arguments.job).cluster.stages
    types = candidates(installed_catalogue())
    found: dict[str, dict[str, Any]] = {}
    prices: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bamboo-prices-") as home:
        for one in types:
            best = ours(arguments.job, one.name, arguments.seeds, Path(home))
            low, high = one.spot_usd_per_hour or (0.0, 0.0)
            # Our price is by zone; SkyPilot gets exactly the price that our option pays.
            spot = best["usd_per_hour"] / best["nodes"] if best else (low * high) ** 0.5
            if best is not None:
                found[one.name] = best
            prices.append(
                {
                    "type": one.name,
                    "gpu": one.gpu,
                    "gpus": one.gpus,
                    "vcpus": one.vcpus,
                    "on_demand": one.on_demand_usd_per_hour,
                    "spot": spot,
                }
            )
            text = best["option"] if best else "does not fit"
            print(f"{one.name:14} ${spot:.4f}/h on spot; ours: {text}", flush=True)
    ranked = theirs(peers, prices, nodes)
    rows = rows_of(ranked, found)
    print_rows(rows, nodes)
    if not found:
        print(f"none of {len(types)} types fits {arguments.job.name}")
        return 1
    best_value = max(option["simulated"]["samples_per_usd"] for option in found.values())
    first = rows[0]["samples_per_usd"]
    winner = max(found, key=lambda name: found[name]["simulated"]["samples_per_usd"])
    share = first / best_value if first else 0.0
    print(
        f"our first is {winner} ({best_value:,.0f} samples per $, simulated); SkyPilot's first, "
        f"{rows[0]['type']}, is worth {share:.2f} of it"
    )
    body = {
        "job": arguments.job.name,
        "nodes_asked": nodes,
        "prices": prices,
        "skypilot": ranked,
        "rows": rows,
        "our_first": winner,
        "value_of_their_first": share,
    }
    print(write_result("beside-skypilot", command_of("beside_skypilot", arguments), body).name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
