"""Reads the dated catalogue of GPU instance types that is part of the installation."""

from functools import cache
from importlib import resources

from bamboo.planner.catalogue import Catalogue, parse_catalogue


@cache
def load_catalogue() -> Catalogue:
    """The catalogue; read once. Raises ValueError when the installed file is damaged."""
    file = resources.files("bamboo.planner").joinpath("catalogue.toml")
    return parse_catalogue(file.read_text(encoding="utf-8"))
