"""Which free node is rented next: zones that lack nodes, then the cheapest, then the oldest."""

from collections import Counter

from bamboo.ids import ZoneId
from bamboo.sim.free_nodes import FreeNodes, Renting

A, B, C = ZoneId("a"), ZoneId("b"), ZoneId("c")


def _taken(free: FreeNodes) -> list[str]:
    rented: Counter[ZoneId] = Counter()
    names = []
    while len(free):
        name, zone = free.take(rented, 0.0)
        rented[zone] += 1
        names.append(name)
    return names


def _market(renting: Renting) -> FreeNodes:
    free = FreeNodes(renting)
    for number in range(3):
        for zone in (C, A, B):
            free.add(f"{zone}{number}", zone)
    free.add("gone", A)
    free.drop("gone")
    free.drop("never there")
    return free


def test_without_a_wish_the_cheapest_zone_gives_all_that_it_has_the_oldest_first() -> None:
    prices = {A: 2.0, B: 1.0, C: 3.0}
    renting = Renting(usd_per_hour=lambda zone, _: prices[zone])
    order = ["b0", "b1", "b2", "a0", "a1", "a2", "c0", "c1", "c2"]
    assert _taken(_market(renting)) == order


def test_a_zone_that_is_to_have_more_comes_first_the_one_that_lacks_most() -> None:
    renting = Renting(zones={C: 2, B: 1})
    assert _taken(_market(renting))[:4] == ["c0", "b0", "c1", "a0"]


def test_prices_are_those_of_the_instant() -> None:
    free = _market(Renting(usd_per_hour=lambda zone, at_s: at_s if zone == A else 5.0))
    assert free.take({}, 0.0) == ("a0", A)
    assert free.take({}, 9.0) == ("b0", B)
