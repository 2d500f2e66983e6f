"""Where the packages of a distribution lie: `cli` and `cloud` below `bamboo.own`, so that an
installed Bamboo takes no name but `bamboo` from anybody (`bamboo/own_packages.py` finds them)."""

from setuptools import find_packages, setup

OWN = ("cli", "cloud")
found = find_packages(include=[f"{name}{end}" for name in OWN for end in ("", ".*")])

setup(
    packages=[*find_packages(include=["bamboo", "bamboo.*"]), *(f"bamboo.own.{n}" for n in found)],
    package_dir={f"bamboo.own.{name}": name for name in OWN},
)
