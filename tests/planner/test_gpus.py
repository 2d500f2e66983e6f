"""GPUs by published figures: the table, what is made from it, and what does not fit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.config.catalogue import load_gpus
from bamboo.errors import InputError
from bamboo.planner.gpus import GIB, Gpu, GpuTable, parse_gpus
from bamboo.planner.profiled import Profile, Work
from tests.planner.profiles import PROFILES, WORKS, layer, profile

TABLE = GpuTable(
    seen="a day",
    product_share=0.5,
    bandwidth_share=0.8,
    kernel_s=1e-5,
    gpus={
        name: Gpu(name=name, memory_gib=gib, fp32_tflops=10, bf16_tflops=80, bandwidth_gb_per_s=500)
        for name, gib in (("X1", 1), ("X2", 2), ("X2-4GB", 4))
    },
)
FACTORS = st.floats(min_value=1, max_value=100)
TEXT = """
schema_version = 1
seen = "a day"
product_share = 0.5
bandwidth_share = 0.8
kernel_us = 10
[gpus.X1]
memory_gib = 1
fp32_tflops = 10
bf16_tflops = 80
bandwidth_gb_per_s = 500
"""


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        # 10 TFLOPS x 0.5; 500 GB/s x 0.8; 10 us a kernel.
        ((5e12, 4e10, 0.0, 1), 1.0),
        ((5e11, 4e11, 0.0, 1), 1.0),
        ((5e12, 4e10, 4e11, 1), 2.0),
        ((5e6, 4e3, 4e3, 200), 0.002),
        ((0.0, 0.0, 0.0, 0), 0.0),
    ],
)
def test_seconds_by_hand(work: tuple[float, float, float, int], seconds: float) -> None:
    flops, product_bytes, other_bytes, kernels = work
    asked = Work(
        product_flops=flops,
        product_bytes=product_bytes,
        other_bytes=other_bytes,
        kernels=kernels,
    )
    assert TABLE.seconds(asked, TABLE.gpus["X1"]) == pytest.approx(seconds)


@given(WORKS, FACTORS, FACTORS)
def test_a_faster_gpu_takes_no_longer_and_no_less_than_its_share(
    work: Work, arithmetic: float, memory: float
) -> None:
    slow = TABLE.gpus["X1"]
    fast = replace(
        slow,
        fp32_tflops=slow.fp32_tflops * arithmetic,
        bandwidth_gb_per_s=slow.bandwidth_gb_per_s * memory,
    )
    slow_s, fast_s = TABLE.seconds(work, slow), TABLE.seconds(work, fast)
    assert fast_s <= slow_s * (1 + 1e-9)
    assert fast_s >= slow_s / max(arithmetic, memory) * (1 - 1e-9)


@given(PROFILES)
def test_only_times_are_modelled(one: Profile) -> None:
    roomy = Gpu(name="R", memory_gib=1e9, fp32_tflops=10, bf16_tflops=80, bandwidth_gb_per_s=500)
    made = TABLE.modelled(one, roomy)
    assert made.modelled
    assert "modelled for R" in made.source
    assert made.facts() == one.facts()
    for old, new in zip(one.layers, made.layers, strict=True):
        assert new.forward_s == TABLE.seconds(old.forward, roomy)
        assert new.backward_s == TABLE.seconds(old.backward, roomy)
        assert new.optimizer_s == TABLE.seconds(old.optimizer, roomy)
        assert new.least_bytes == old.least_bytes
        assert new.repeats == 0
    assert Profile.from_json(made.to_json()) == made


def test_a_layer_that_does_not_fit_is_named_with_its_bytes_and_who_has_room() -> None:
    large = replace(layer(2, name="Head"), parameter_bytes=3 * GIB // 4, parameters=10**9)
    one = profile(layer(0), layer(1), large)
    with pytest.raises(InputError, match=r"layer 2 \(Head\) needs 3\.0 GiB alone.* X2 has 2 GiB"):
        TABLE.modelled(one, TABLE.gpus["X2"])
    with pytest.raises(InputError, match=r"or one of X2-4GB$"):
        TABLE.modelled(one, TABLE.gpus["X1"])
    assert TABLE.modelled(one, TABLE.gpus["X2-4GB"]).modelled
    larger = replace(large, parameter_bytes=3 * GIB)
    with pytest.raises(InputError, match="no GPU of the table has it"):
        TABLE.modelled(profile(larger), TABLE.gpus["X1"])


def test_names_are_found_and_others_refused() -> None:
    assert TABLE.find("x1").name == "X1"
    assert TABLE.of("X2", 2).name == "X2"
    assert TABLE.of("X2", 4).name == "X2-4GB"
    with pytest.raises(InputError, match="GPU 'Z9' is not in the table of a day; take one of X1"):
        TABLE.find("Z9")


def test_a_variant_is_found_by_the_memory_nearest_to_what_is_said() -> None:
    table = load_gpus()
    assert table.of("A100", 39.6).name == "A100"
    assert table.of("A100", 79.3).name == "A100-80GB"
    assert table.of("A10G", 22888 / 1024).name == "A10G"


def test_what_times_are_of_is_said_beside_what_bf16_would_take() -> None:
    assert TABLE.gpus["X1"].arithmetic == (
        "fp32 without tensor cores, 10 TFLOPS at most; bf16 on them would take 0.12 of the time of "
        "products (80 TFLOPS)"
    )
    without = replace(TABLE.gpus["X1"], bf16_tflops=0.0)
    assert without.arithmetic.endswith("10 TFLOPS at most; it has no bf16")


def test_the_table_is_read_and_a_damaged_one_refused() -> None:
    table = parse_gpus(TEXT)
    assert table.kernel_s == pytest.approx(1e-5)
    assert table.gpus == {"X1": TABLE.gpus["X1"]}
    for old, new in (
        ("schema_version = 1", "schema_version = 2"),
        ('seen = "a day"', ""),
        ("product_share = 0.5", "product_share = 1.5"),
        ("bandwidth_share = 0.8", "bandwidth_share = 0"),
        ("kernel_us = 10", "kernel_us = 0"),
        ("fp32_tflops = 10", "fp32_tflops = -1"),
        ("bf16_tflops = 80", "bf16_tflops = -1"),
        ("memory_gib = 1", ""),
    ):
        with pytest.raises(ValueError):
            parse_gpus(TEXT.replace(old, new))
