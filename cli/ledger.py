"""What the launcher writes into the run's ledger: prices as they begin and end, throughput, value.

From progress and the instances to records, and back to which prices are written.
"""

from collections.abc import Iterator, Mapping, Sequence

from bamboo.coord.follow import all_records
from bamboo.coord.ledger import (
    STREAM,
    LedgerRecord,
    PriceRecord,
    ThroughputRecord,
    ValueRecord,
    decode_record,
)
from bamboo.ids import InstanceId, ZoneId
from bamboo.ports import Store
from cli.money import Rented, bill
from cli.progress import Progress


def priced(store: Store) -> dict[InstanceId, bool]:
    """Instance -> whether the end of its price stands in the ledger too."""
    found: dict[InstanceId, bool] = {}
    for record in map(decode_record, all_records(store, STREAM)):
        if isinstance(record, PriceRecord):
            found[record.instance] = record.until_s is not None
    return found


def ledger_records(
    progress: Progress,
    rented: Sequence[Rented],
    written: Mapping[InstanceId, bool],
    *,
    samples_per_step: int,
) -> Iterator[LedgerRecord]:
    """The records due now. `written`: instance -> whether the end of its price is in the ledger."""
    for item in rented:
        instance = InstanceId(item.instance)
        if instance not in written or (item.ended_at_s is not None and not written[instance]):
            yield PriceRecord(
                at_s=item.started_at_s,
                instance=instance,
                instance_type=item.instance_type,
                zone=ZoneId(item.zone),
                market=item.market,
                usd_per_hour=item.usd_per_hour,
                on_demand_usd_per_hour=item.on_demand_usd_per_hour,
                until_s=item.ended_at_s,
            )
    samples = progress.steps_done * samples_per_step
    tokens_per_sample = progress.tokens_per_step / samples_per_step
    yield ThroughputRecord(
        at_s=progress.now_s,
        step=progress.steps_done,
        samples=samples,
        tokens=progress.tokens,
        samples_per_s=progress.tokens_per_s / tokens_per_sample,
    )
    on_demand = bill(rented, now_s=progress.now_s, modelled=True).on_demand_usd
    yield ValueRecord(
        at_s=progress.now_s,
        step=progress.steps_done,
        usd=progress.usd,
        on_demand_usd=on_demand,
        samples_per_usd=samples / progress.usd if progress.usd > 0 else 0.0,
        tokens_per_usd=progress.tokens_per_usd,
    )
