"""The bill of a run: the log it is made from, instance-seconds times prices, and the overheads.

    cloud.jsonl  ->  Rented, one for each instance  ->  Bill  |  Beside, which is not in the bill

Rules: `bamboo.value` has what EC2 bills for a Linux instance. A final record is made only from a
whole log; a damaged log is an error that names it and says what to do. The launcher of a running
run goes on with the readable lines and says so, since ending the run would not repair the log. All
figures of what a run cost take the overheads from here. In a local run the instances are processes
and the prices are a catalogue's, so every figure is labelled modelled, as all overheads are.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.planner.prices.auxiliary import AuxiliaryPrice, Beside, beside_run
from bamboo.telemetry.records import Tail
from bamboo.value import MICRO, MINIMUM_BILLED_S, bill_micro_usd, billed_s, checked_usd

_DAMAGE = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
_SHOWN = 60
"""Characters of a line that an error shows to identify it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """One instance, from its start to its end or until now."""

    instance: str
    instance_type: str
    zone: str
    market: str
    """`spot` or `on-demand`."""
    started_at_s: float
    ended_at_s: float | None = None
    interrupted: bool = False
    """The cloud took it; False: we terminated it, or it still runs."""
    usd_per_hour: float
    """Price on the market that it was rented on."""
    on_demand_usd_per_hour: float
    free_first_hour: bool = False
    """The value of `budget.free_first_hour`."""

    @property
    def taken_free(self) -> bool:
        """Whether its first hour is free: the cloud took it, and the job counts that."""
        return self.free_first_hour and self.market == "spot" and self.interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One instance on the receipt."""

    instance: str
    instance_type: str
    zone: str
    market: str
    seconds: float
    """How long it existed."""
    billed_s: int
    """After the minimum; 0 when it was free."""
    usd_per_hour: float
    usd: float
    on_demand_usd: float
    """The price of the same seconds on demand, where nothing is free."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """All instances of a run."""

    lines: tuple[Line, ...]
    modelled: bool
    """The instances were processes of this machine: no dollar was paid."""

    @property
    def instance_seconds(self) -> float:
        return sum(line.seconds for line in self.lines)

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)

    @property
    def on_demand_usd(self) -> float:
        return sum(line.on_demand_usd for line in self.lines)

    def to_body(self) -> dict[str, Any]:
        """The value in receipt.json."""
        return {
            "modelled": self.modelled,
            "instance_seconds": round(self.instance_seconds, 3),
            "usd": round(self.usd, 6),
            "on_demand_usd": round(self.on_demand_usd, 6),
            "instances": [asdict(line) for line in self.lines],
        }


# ---------------------------------------------------------------------- the bill


def bill(rented: Sequence[Rented], *, now_s: float, modelled: bool) -> Bill:
    """The bill of these instances by `now_s`. A run that goes on is billed as if it ended now."""
    return Bill(lines=tuple(_line(item, now_s=now_s) for item in rented), modelled=modelled)


def lasts_until_s(
    rented: Sequence[Rented],
    *,
    max_usd: float,
    nodes: int,
    dearest_usd_per_hour: float,
    now_s: float,
) -> float:
    """When `nodes` instances will have cost `max_usd` (Unix time; 0: no limit, for ever). A missing
    instance is assumed to cost what the dearest so far did, or `dearest_usd_per_hour` where there
    was none. An error is thus on the safe side, and is corrected a moment later."""
    if max_usd <= 0:
        return inf
    live = [one.usd_per_hour for one in rented if one.ended_at_s is None]
    dearest = max((one.usd_per_hour for one in rented), default=dearest_usd_per_hour)
    rate = sum(live) + max(0, nodes - len(live)) * dearest
    left_usd = max(0.0, max_usd - bill(rented, now_s=now_s, modelled=False).usd)
    return now_s + 3600 * left_usd / rate if rate > 0 else inf


def _seconds(item: Rented, now_s: float) -> float:
    end_s = now_s if item.ended_at_s is None else item.ended_at_s
    return max(0.0, end_s - item.started_at_s)


def _line(item: Rented, *, now_s: float) -> Line:
    seconds = _seconds(item, now_s)
    billed = billed_s(seconds, free_first_hour=item.taken_free)
    if billed == 0:
        note = "interrupted by the cloud in its first hour: free"
    elif seconds < MINIMUM_BILLED_S:
        note = f"{MINIMUM_BILLED_S} s minimum"
    else:
        note = ""
    if item.market == "spot" and item.usd_per_hour > item.on_demand_usd_per_hour:
        above = "bought above the on-demand price"
        note = f"{note}; {above}" if note else above
    paid = bill_micro_usd(seconds, usd_per_hour=item.usd_per_hour, free_first_hour=item.taken_free)
    on_demand = bill_micro_usd(seconds, usd_per_hour=item.on_demand_usd_per_hour)
    return Line(
        instance=item.instance,
        instance_type=item.instance_type,
        zone=item.zone,
        market=item.market,
        seconds=round(seconds, 3),
        billed_s=billed,
        usd_per_hour=item.usd_per_hour,
        usd=paid / MICRO,
        on_demand_usd=on_demand / MICRO,
        note=note,
    )


# ---------------------------------------------------------------------- the log of instances


def rented_from_journal(
    records: Iterable[Mapping[str, Any]],
    *,
    on_demand_usd_per_hour: Mapping[str, float],
    free_first_hour: bool = False,
) -> list[Rented]:
    """The instances of a `cloud.jsonl`, in the order of their start.

    `on_demand_usd_per_hour` is by instance type, `free_first_hour` as in the job's `[budget]`. An
    instance bought on-demand, or from a pool without a spot price, costs the on-demand price. A
    repeated record counts once. Raises KeyError for a type without a price. Raises ValueError for
    an impossible time or price (`bamboo.value`), and for a start or an end that contradicts
    another record, since it would change the bill unnoticed.
    """
    found: dict[str, Rented] = {}
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in records:
        instance, kind = str(record["instance"]), str(record["kind"])
        if kind == "seen" and known.pop(("end", instance), None) is not None:
            # A list of the account had left it out.
            found[instance] = replace(found[instance], ended_at_s=None, interrupted=False)
        if kind not in ("start", "end"):
            continue
        if (kind, instance) in known:
            if known[kind, instance] != record:
                raise ValueError(f"the {kind} of {instance!r}: it stands there twice, differently")
            continue
        known[kind, instance] = record
        if kind == "start":
            on_demand = on_demand_usd_per_hour[str(record["instance_type"])]
            spot = record["usd_per_hour"]
            on_spot = record["market"] == "spot" and spot is not None
            found[instance] = Rented(
                instance=instance,
                instance_type=str(record["instance_type"]),
                zone=str(record["zone"]),
                market=str(record["market"]),
                started_at_s=_figure(record["t"]),
                usd_per_hour=checked_usd(spot) if on_spot else on_demand,
                on_demand_usd_per_hour=on_demand,
                free_first_hour=free_first_hour,
            )
        else:
            found[instance] = _ended(found.get(instance), record)
    return list(found.values())


def _ended(item: Rented | None, record: Mapping[str, Any]) -> Rented:
    ended_at_s = _figure(record["t"])
    if item is None or ended_at_s < item.started_at_s:
        raise ValueError(f"the end of {record['instance']!r}: it stands before its start")
    return replace(item, ended_at_s=ended_at_s, interrupted=record["cause"] == "interrupted")


def _figure(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not isfinite(number) or number < 0:
        raise ValueError(f"{value!r}, where a time stands")
    return number


def read_bill_log(path: Path) -> list[Mapping[str, Any]]:
    """All records; none where the file does not exist. Raises InputError for a damaged line."""
    try:
        return [_record(line) for line in Tail(path).lines()]
    except _DAMAGE as error:
        raise _damaged(path, error) from error


def rented_in(
    path: Path, *, on_demand_usd_per_hour: Mapping[str, float], free_first_hour: bool
) -> list[Rented]:
    """The instances of a whole log, in the order of their start. Raises InputError where the log is
    damaged or its records contradict each other."""
    records = read_bill_log(path)
    try:
        return rented_from_journal(
            records,
            on_demand_usd_per_hour=on_demand_usd_per_hour,
            free_first_hour=free_first_hour,
        )
    except _DAMAGE as error:
        raise _damaged(path, error) from error


class BillLog:
    """The log of a running run. `note` is called once for each unreadable line and for each
    instance that is left out."""

    def __init__(
        self,
        path: Path,
        *,
        on_demand_usd_per_hour: Mapping[str, float],
        free_first_hour: bool,
        note: Callable[[str], None],
    ) -> None:
        self._path = path
        self._tail = Tail(path)
        self._prices = on_demand_usd_per_hour
        self._note = note
        self._free_first_hour = free_first_hour
        self._records: dict[str, list[Mapping[str, Any]]] = {}
        self._noted: set[str] = set()

    def rented(self) -> Sequence[Rented]:
        """All instances that can be read, in the order of their start."""
        for line in self._tail.lines():
            try:
                record = _record(line)
                self._records.setdefault(str(record["instance"]), []).append(record)
            except _DAMAGE as error:
                self._say(error)
        found: list[Rented] = []
        for records in self._records.values():
            try:
                found += rented_from_journal(
                    records,
                    on_demand_usd_per_hour=self._prices,
                    free_first_hour=self._free_first_hour,
                )
            except _DAMAGE as error:
                self._say(error)
        return found

    def _say(self, error: Exception) -> None:
        text = str(_damaged(self._path, error))
        if text not in self._noted:
            self._noted.add(text)
            self._note(f"the bill lacks what cannot be read: {text}")


def _record(line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
        for field in ("instance", "kind"):
            if not isinstance(record[field], str):
                raise ValueError(f"{field!r} is {record[field]!r}")
        float(record["t"])
    except _DAMAGE as error:
        raise ValueError(f"{error} in {line[:_SHOWN]!r}") from error
    else:
        return dict(record)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path}: a record lacks or garbles {error}; take the original, or take that line out"
    )


# ---------------------------------------------------------------------- the overheads


def beside_of(
    rented: Sequence[Rented],
    prices: Mapping[str, AuxiliaryPrice],
    *,
    now_s: float,
    crossed_bytes: float,
) -> Beside:
    """The overheads of these instances by `now_s`. The coordinator counts while any exists."""
    spans = [_span(item, now_s) for item in rented]
    return beside_run(
        prices,
        instance_s=sum(until_s - from_s for from_s, until_s in spans),
        lasted_s=_covered_s(spans),
        crossed_bytes=crossed_bytes,
    )


def beside_body(beside: Beside, *, crossed_bytes: float) -> dict[str, Any]:
    """The value of `beside` in a receipt and in `bamboo cost RUN --json`."""
    return {
        "modelled": True,
        "coordinator_micro_usd": beside.coordinator_micro_usd,
        "disks_micro_usd": beside.disks_micro_usd,
        "addresses_micro_usd": beside.addresses_micro_usd,
        "transfer_micro_usd": beside.transfer_micro_usd,
        "transfer_bytes": round(crossed_bytes),
        "micro_usd": beside.micro_usd,
        "usd": beside.micro_usd / MICRO,
    }


def _span(item: Rented, now_s: float) -> tuple[float, float]:
    until_s = now_s if item.ended_at_s is None else item.ended_at_s
    return item.started_at_s, max(item.started_at_s, until_s)


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in at least one span: there may be hours between two parts of a run."""
    covered, reached = 0.0, 0.0
    for from_s, until_s in sorted(spans):
        covered += max(0.0, until_s - max(from_s, reached))
        reached = max(reached, until_s)
    return covered
