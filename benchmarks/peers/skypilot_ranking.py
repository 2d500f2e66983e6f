"""SkyPilot's optimizer over a catalogue that it is given; run by an interpreter that has SkyPilot.

Standard input: {"nodes": N, "types": [{"type", "gpu", "gpus", "vcpus", "on_demand", "spot"}, ...]},
prices in USD per hour. Standard output, last line: [{"type", "spot", "usd_per_hour"}, ...], best
first, `usd_per_hour` of all N nodes. SKY_RUNTIME_DIR and HOME have to name an empty folder: the
catalogue is written there, and AWS is marked there as usable, so that no network access is needed.
The ranking results from asking for the best again and again, without those named before.
"""

import contextlib
import csv
import json
import os
import sys
from pathlib import Path

SPOT_OR_NOT = (True, False)
COLUMNS = (
    "InstanceType",
    "AcceleratorName",
    "AcceleratorCount",
    "vCPUs",
    "MemoryGiB",
    "GpuInfo",
    "Price",
    "SpotPrice",
    "Region",
    "AvailabilityZone",
    "Arch",
)


def write_catalogue(home: Path, version: str, types: list[dict]) -> None:
    folder = home / ".sky" / "catalogs" / version
    (folder / "aws").mkdir(parents=True)
    (folder / "common").mkdir()
    with (folder / "aws" / "vms.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for one in types:
            rows.writerow(
                (
                    one["type"],
                    one["gpu"],
                    float(one["gpus"]),
                    float(one["vcpus"]),
                    4.0 * one["vcpus"],
                    "",
                    one["on_demand"],
                    one["spot"],
                    "us-east-1",
                    "us-east-1a",
                    "x86_64",
                )
            )
    # An image is looked up, and never used, since nothing is launched.
    (folder / "aws" / "images.csv").write_text(
        "Tag,Region,OS,OSVersion,ImageId,CreationDate,BaseImageId\n"
        "skypilot:custom-gpu-ubuntu,us-east-1,ubuntu,22.04,ami-0,20240101,\n"
    )
    gpus = sorted({one["gpu"] for one in types})
    (folder / "common" / "accelerators.csv").write_text(
        "AcceleratorName,Clouds\n" + "".join(f"{gpu},\"['AWS']\"\n" for gpu in gpus)
    )
    (folder / "common" / "metadata.csv").write_text(
        "GPU,MemoryGB,Manufacturer\n" + "".join(f"{gpu},16,NVIDIA\n" for gpu in gpus)
    )


def ranking(asked: dict) -> list[dict]:
    """Best first, until nothing is left."""
    import sky
    from sky import check, exceptions, global_user_state, optimizer
    from sky.clouds.cloud import CloudCapability

    workspace = "default"
    global_user_state.set_enabled_clouds(["AWS"], CloudCapability.COMPUTE, workspace)
    global_user_state.set_allowed_clouds(check._get_workspace_allowed_clouds(workspace), workspace)
    found, blocked = [], []
    while True:
        task = sky.Task(run="true", num_nodes=asked["nodes"])
        task.set_resources(
            {
                sky.Resources(
                    infra="aws", accelerators={one["gpu"]: int(one["gpus"])}, use_spot=spot
                )
                for one in asked["types"]
                for spot in SPOT_OR_NOT
            }
        )
        with sky.Dag() as dag:
            dag.add(task)
        try:
            optimizer.Optimizer.optimize(dag, blocked_resources=blocked, quiet=True)
        except exceptions.ResourcesUnavailableError:
            return found
        best = task.best_resources
        found.append(
            {
                "type": best.instance_type,
                "spot": best.use_spot,
                "usd_per_hour": asked["nodes"] * best.get_cost(3600),
            }
        )
        blocked.append(best)


def main() -> None:
    asked = json.load(sys.stdin)
    # SkyPilot writes its progress to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        from sky.skylet import constants

        home = Path(os.environ["SKY_RUNTIME_DIR"])
        write_catalogue(home, constants.CATALOG_SCHEMA_VERSION, asked["types"])
        found = ranking(asked)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
