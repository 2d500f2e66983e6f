"""Reads the dated tables that are part of the installation: GPU instance types, and GPUs."""

from functools import cache
from importlib import resources

from bamboo.planner.catalogue import Catalogue, parse_catalogue
from bamboo.planner.gpus import GpuTable, parse_gpus


@cache
def load_catalogue() -> Catalogue:
    """The catalogue; read once. Raises ValueError when the installed file is damaged."""
    return parse_catalogue(_text("catalogue.toml"))


@cache
def load_gpus() -> GpuTable:
    """The table of GPUs; read once. Raises ValueError when the installed file is damaged."""
    return parse_gpus(_text("gpus.toml"))


def _text(name: str) -> str:
    return resources.files("bamboo.planner").joinpath(name).read_text(encoding="utf-8")
