"""The parts of a bill: by hand where they are few, and by an independent bill where drawn."""

from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.errors import CoreMisuse
from bamboo.ids import InstanceId
from bamboo.planner.attribution import Spent, Tenure, Use, Work, apportion, attribute
from bamboo.planner.duties import Duty, DutyChange, Span, Taken

T0 = 1_795_284_128.6878247
ONE = InstanceId("i-1")
TWO = InstanceId("i-2")


def tenure(lived_s: float, **change: object) -> Tenure:
    given_: dict[str, object] = {
        "instance": ONE,
        "started_s": T0,
        "ended_s": T0 + lived_s,
        "usd_per_hour": 3.6,
    }
    return Tenure(**{**given_, **change})  # type: ignore[arg-type]


def change(number: int, at_s: float, *taken: tuple[InstanceId, Duty], **more: object) -> DutyChange:
    return DutyChange(
        number=number,
        at_s=T0 + at_s,
        changed=tuple(Taken(instance=who, duty=duty) for who, duty in taken),
        **more,  # type: ignore[arg-type]
    )


def seconds(spent: Spent) -> dict[Use, float]:
    return {use: part / 1e6 for use, part in spent.us.items()}


def by_hand(one: Tenure) -> int:
    """The bill of one instance, from the rules of the cloud alone."""
    used_s = one.ended_s - one.started_s
    if one.free_first_hour and used_s < 3600:
        return 0
    price = (Decimal(repr(one.usd_per_hour)) * 1_000_000).quantize(Decimal(1), "ROUND_HALF_UP")
    return int((price * max(60, ceil(used_s)) / 3600).to_integral_value(ROUND_CEILING))


def test_an_hour_of_training() -> None:
    changes = [
        change(0, 40.0, (ONE, Duty.FORMING)),
        change(1, 50.0, (ONE, Duty.STEPS)),
        change(2, 3500.0, (ONE, Duty.STANDBY)),
        change(3, 3590.0, (ONE, Duty.LEAVING)),
    ]
    work = [Work(at_s=T0 + 3400, instance=ONE, useful_s=1675.0, redundant_s=335.0)]
    (spent,) = attribute([tenure(3600.0)], changes, work)
    # 3,450 s in steps; measured over 3,350 of them: a half useful, a tenth redundant.
    assert seconds(spent) == pytest.approx(
        {
            Use.BOOTING: 40, Use.FORMING: 10, Use.USEFUL: 1725, Use.REDUNDANCY: 345,
            Use.BUBBLE: 1380, Use.STANDBY: 90, Use.LEAVING: 10,
        },
        abs=1e-5,
    )  # fmt: skip
    assert spent.micro_usd[Use.USEFUL] == 1_725_000
    assert spent.bill_micro_usd == 3_600_000
    assert not spent.exact


def test_the_minimum_and_the_free_hour_are_lines_of_their_own() -> None:
    (short,) = attribute([tenure(12.0)], [], [])
    assert short.micro_usd == {Use.BOOTING: 12_000, Use.MINIMUM: 48_000}
    (free,) = attribute([tenure(12.0, free_first_hour=True)], [], [])
    assert free.micro_usd == {Use.BOOTING: 12_000, Use.MINIMUM: 48_000, Use.FREE: -60_000}
    assert (short.bill_micro_usd, free.bill_micro_usd) == (60_000, 0)
    (odd,) = attribute([tenure(60.25)], [], [])
    assert odd.micro_usd == {Use.BOOTING: 60_250, Use.ROUNDING: 750}


def test_those_whom_a_loss_holds_up_stand_since_the_loss() -> None:
    changes = [
        change(0, 0.0, (ONE, Duty.STEPS), (TWO, Duty.STEPS)),
        change(1, 103.0, (ONE, Duty.RECOVERY), (TWO, Duty.LEAVING), lost=(TWO,)),
        change(2, 105.0, (ONE, Duty.STEPS)),
    ]
    one, two = attribute([tenure(200.0), tenure(100.0, instance=TWO)], changes, [])
    assert seconds(one) == pytest.approx({Use.RECOVERY: 5, Use.STEPS: 195}, abs=1e-5)
    assert seconds(two) == pytest.approx({Use.STEPS: 100}, abs=1e-5)


def test_work_that_a_restore_takes_back_is_lost_and_keeps_no_share() -> None:
    changes = [
        change(0, 0.0, (ONE, Duty.STEPS)),
        change(1, 300.0, (ONE, Duty.RECOVERY)),
        change(2, 320.0, (ONE, Duty.STEPS), again=Span(since_s=T0 + 200, until_s=T0 + 300)),
        change(3, 320.0, again=Span(since_s=T0 + 250, until_s=T0 + 300)),
    ]
    work = [Work(at_s=T0 + 520, instance=ONE, useful_s=250.0, redundant_s=0.0)]
    (spent,) = attribute([tenure(520.0)], changes, work)
    assert seconds(spent) == pytest.approx(
        {Use.USEFUL: 200, Use.BUBBLE: 200, Use.LOST: 100, Use.RECOVERY: 20}, abs=1e-5
    )


def test_the_time_of_evaluations_is_a_line_of_its_own() -> None:
    """Also where some of it was lost, and where all stood for a lost node meanwhile."""
    changes = [
        change(0, 0.0, (ONE, Duty.STEPS)),
        change(1, 120.0, evaluated=Span(since_s=T0 + 100, until_s=T0 + 120)),
        change(2, 220.0, (ONE, Duty.RECOVERY)),
        change(3, 230.0, (ONE, Duty.STEPS), again=Span(since_s=T0 + 110, until_s=T0 + 160)),
        change(4, 240.0, evaluated=Span(since_s=T0 + 215, until_s=T0 + 240)),
    ]
    work = [Work(at_s=T0 + 520, instance=ONE, useful_s=240.0, redundant_s=0.0)]
    (spent,) = attribute([tenure(520.0)], changes, work)
    # Busy for 240 of the 485 s in steps that were no evaluation.
    assert seconds(spent) == pytest.approx(
        {
            Use.EVALUATION: 10 + 15, Use.LOST: 50, Use.RECOVERY: 10,
            Use.USEFUL: 240 * 435 / 485, Use.BUBBLE: 245 * 435 / 485,
        },
        abs=1e-5,
    )  # fmt: skip


def test_what_was_measured_by_kind_scales_what_was_estimated() -> None:
    changes = [change(0, 0.0, (ONE, Duty.STEPS)), change(1, 200.0, (ONE, Duty.LEAVING))]
    work = [
        Work(at_s=T0 + 100, instance=ONE, useful_s=20.0, redundant_s=10.0),
        Work(at_s=T0 + 200, instance=ONE, useful_s=60.0, redundant_s=40.0),
        Work(at_s=T0 + 200, instance=ONE, useful_s=90.0, redundant_s=20.0, exact=True),
    ]
    (spent,) = attribute([tenure(200.0)], changes, work)
    assert spent.exact
    whole = {Use.USEFUL: 90, Use.REDUNDANCY: 20, Use.BUBBLE: 90}
    assert seconds(spent) == pytest.approx(whole, abs=1e-5)
    (late,) = attribute([tenure(200.0)], changes, [work[0], work[2]])
    assert seconds(late) == pytest.approx(whole, abs=1e-5), "estimated long before: not scaled"


def test_a_bill_that_the_parts_do_not_come_to_is_refused() -> None:
    with pytest.raises(CoreMisuse, match="do not make a whole of 7"):
        apportion(7, [Fraction(3), Fraction(3)])
    with pytest.raises(CoreMisuse, match="do not make a whole"):
        apportion(5, [Fraction(3), Fraction(3)])
    assert apportion(7, [Fraction(5, 2), Fraction(5, 2), Fraction(3, 2)]) == [3, 3, 1]
    assert apportion(3, [Fraction(19, 10), Fraction(2, 10), Fraction(9, 10)]) == [2, 0, 1]


DUTIES = st.sampled_from(list(Duty))
TIMES = st.floats(0, 20_000, allow_nan=False)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Tenure], list[DutyChange], list[Work]]:
    """Anything at all: duties of anybody at any time, work of anybody, overlapping restores."""
    names = [InstanceId(f"i-{n}") for n in range(draw(st.integers(1, 5)))]
    tenures = []
    for name in names:
        began_s = draw(TIMES)
        lived_s = draw(st.one_of(st.floats(0, 100), st.floats(3590, 3610), TIMES))
        tenures.append(
            tenure(
                0.0,
                instance=name,
                started_s=T0 + began_s,
                ended_s=T0 + began_s + lived_s,
                usd_per_hour=draw(st.integers(1, 400_000)) / 1e4,
                free_first_hour=draw(st.booleans()),
            )
        )
    changes = []
    for number, at_s in enumerate(sorted(draw(st.lists(TIMES, max_size=12)))):
        taken = draw(st.dictionaries(st.sampled_from(names), DUTIES, max_size=5))
        since_s, until_s = sorted((draw(TIMES), draw(TIMES)))
        again = Span(since_s=T0 + since_s, until_s=T0 + until_s)
        changes.append(
            change(
                number,
                at_s,
                *taken.items(),
                lost=tuple(draw(st.sets(st.sampled_from(names), max_size=2))),
                again=again if draw(st.booleans()) else None,
                evaluated=again if draw(st.booleans()) else None,
            )
        )
    works = [
        Work(
            at_s=T0 + draw(TIMES),
            instance=draw(st.sampled_from(names)),
            useful_s=draw(TIMES),
            redundant_s=draw(TIMES),
            exact=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(0, 10)))
    ]
    return tenures, changes, works


@settings(max_examples=50)
@given(histories())
def test_the_parts_are_the_bill_whatever_happened(
    history: tuple[Sequence[Tenure], Sequence[DutyChange], Sequence[Work]],
) -> None:
    tenures, changes, works = history
    for one, spent in zip(tenures, attribute(tenures, changes, works), strict=True):
        assert sum(spent.micro_usd.values()) == spent.bill_micro_usd == by_hand(one)
        assert abs(sum(spent.us.values()) - (one.ended_s - one.started_s) * 1e6) <= 2
        assert all(part > 0 for part in spent.us.values())
        assert [use for use, part in spent.micro_usd.items() if part < 0] in ([], [Use.FREE])
