"""The map of where redundancy pays: what `auto` takes, and that cells without a gain are shown."""

from dataclasses import replace

import pytest

from benchmarks.restart_map import map_svg, row, text_of
from testbed.published_profile import bert_large

WORK = replace(bert_large(), bytes_per_s=bert_large().state_bytes_per_s)


@pytest.mark.full
@pytest.mark.timeout(60)
def test_auto_takes_redundancy_where_it_pays_and_checkpoints_alone_where_it_does_not() -> None:
    calm = row(WORK, 4, 0.01, seeds=1, hours=6.0)
    busy = row(WORK, 8, 1.0, seeds=1, hours=6.0)
    assert calm["auto"] == "off" != busy["auto"]
    assert all(0.98 < ratio < 1.02 for ratio in calm["ratio"].values())
    ratios = list(busy["ratio"].values())
    assert ratios == sorted(ratios), "the longer their restart, the better ours stands"
    assert ratios[-1] > 1.2
    assert all(one["auto_of_best"] > 0.98 for one in (calm, busy))
    text = text_of([calm, busy])
    assert f"{sum(ratio >= 1.2 for ratio in ratios)} of 6 cells reach 1.2 x" in text
    drawn = map_svg([calm, busy])
    assert drawn.startswith(b"<?xml")
    assert len(drawn) > len(map_svg([calm])), "each cell is drawn"
