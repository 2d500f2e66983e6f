"""How often nodes of a type are lost: `planner.risks.hazards` with the data on this machine.

Rule: plan, cost, simulation and launch all take their rate of losses from here. It counts own runs
in an account, by the log of what the cloud billed. Runs of this machine do not count, because their
losses were ordered. A run that is unreadable or belongs to another user counts as none, and never
breaks a plan.
"""

from collections.abc import Callable, Mapping
from math import isfinite

from bamboo.billing.money import Rented, read_bill_log, rented_in
from bamboo.config.catalogue import load_bands
from bamboo.errors import InputError
from bamboo.planner.risks.hazards import Lived, LossRate, OwnRuns, loss_rate
from bamboo.runs import run_folder
from bamboo.runs.run_folder import RunFolder, catalogue_of

HOUR_S = 3600.0


def rate_of(kind: str, region: str, *, asked: LossRate | None = None) -> LossRate:
    """The rate of losses of an instance type. `asked` is the rate from the command line."""
    return rates_in(region, asked=asked)(kind)


def rates_in(region: str, *, asked: LossRate | None = None) -> Callable[[str], LossRate]:
    """As `rate_of`, for several types: the runs are read once."""
    own = {} if asked is not None else own_runs(region)
    bands = load_bands()
    return lambda kind: loss_rate(kind, region, bands=bands, own=own.get(kind), asked=asked)


def own_runs(region: str) -> dict[str, OwnRuns]:
    """Instance type -> what the runs of this home have seen of it on spot."""
    found: dict[str, OwnRuns] = {}
    for folder in run_folder.own_folders(run_folder.home()):
        for kind, seen in _of_run(folder, region).items():
            found[kind] = found[kind] + seen if kind in found else seen
    return found


def _of_run(folder: RunFolder, region: str) -> dict[str, OwnRuns]:
    """Empty for a run of this machine, of another region, or a damaged one."""
    try:
        cloud = folder.read_json(folder.resolved).get("cloud")
        if not isinstance(cloud, Mapping) or cloud.get("provider") == "local":
            return {}
        if cloud.get("region") != region:
            return {}
        prices = catalogue_of(folder).on_demand_prices()
        rented = rented_in(folder.cloud, on_demand_usd_per_hour=prices, free_first_hour=False)
        records = read_bill_log(folder.cloud)
    except (InputError, OSError):
        return {}
    last_s: dict[str, float] = {}
    for record in records:
        instance = str(record["instance"])
        last_s[instance] = max(last_s.get(instance, 0.0), float(record["t"]))
    zones: dict[str, dict[str, Lived]] = {}
    for one in rented:
        if one.market == "spot":
            of_type = zones.setdefault(one.instance_type, {})
            before = of_type.get(one.zone, Lived(hours=0.0, losses=0))
            of_type[one.zone] = before + _lived(one, last_s[one.instance])
    return {kind: OwnRuns(runs=1, by_zone=by_zone) for kind, by_zone in zones.items()}


def _lived(one: Rented, last_s: float) -> Lived:
    """`last_s` is when an instance without an end was last seen."""
    end_s = last_s if one.ended_at_s is None else one.ended_at_s
    hours = max(0.0, end_s - one.started_at_s) / HOUR_S
    return Lived(hours=hours if isfinite(hours) else 0.0, losses=int(one.interrupted))
