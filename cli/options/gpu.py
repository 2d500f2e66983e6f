"""`--gpu`, for every command that may model the times of a GPU."""

from typing import Any

import click

from bamboo.config.catalogue import load_gpus
from bamboo.planner.profiles.gpus import OWN


class _GpuName(click.ParamType[str]):
    """A GPU's name in the table. A job file after a bare `--gpu` is read as one, and rejected."""

    name = "gpu"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == OWN:
            return OWN
        if str(value).endswith(".toml"):
            self.fail(f"{value} is no GPU: write the job file before --gpu", param, ctx)
        return load_gpus().find(str(value)).name


gpu_option = click.option(
    "--gpu",
    is_flag=False,
    flag_value=OWN,
    type=_GpuName(),
    metavar="[NAME]",
    help="Model the times of a GPU, by default the instance type's; no layer is built here.",
)
