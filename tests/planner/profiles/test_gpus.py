"""GPUs by published figures: the table, what is made from it, and what does not fit."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.config.catalogue import load_gpus
from bamboo.errors import InputError
from bamboo.planner.origin import Origin
from bamboo.planner.profiles.gpus import GIB, Gpu, GpuTable, parse_gpus
from bamboo.planner.profiles.profiled import Profile, Work
from bamboo.planner.profiles.shaped import gpt_profile
from tests.planner.profiles.made_up import PROFILES, WORKS, layer, profile


def gpu(name: str, memory_gib: float) -> Gpu:
    """A made-up GPU."""
    return Gpu(
        name=name,
        capability=(9, 0),
        memory_gib=memory_gib,
        fp32_tflops=10,
        fp16_tflops=80,
        bf16_tflops=80,
        bandwidth_gb_per_s=500,
        host_gb_per_s=10,
        origin=Origin(seen="2026-11-27", source="a sheet"),
    )


TABLE = GpuTable(
    seen="a day",
    product_share=0.5,
    tensor_share=0.25,
    bandwidth_share=0.8,
    copy_share=0.5,
    kernel_s=1e-5,
    bf16_kernel_s=3e-5,
    gpus={name: gpu(name, gib) for name, gib in (("X1", 1), ("X2", 2), ("X2-4GB", 4))},
)
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "gpu"
OLD = replace(TABLE.gpus["X1"], name="O", capability=(7, 5), bf16_tflops=0.0)
FACTORS = st.floats(min_value=1, max_value=100)
TEXT = """
schema_version = 4
seen = "a day"
product_share = 0.5
tensor_share = 0.25
bandwidth_share = 0.8
copy_share = 0.5
kernel_us = 10
bf16_kernel_us = 30
[gpus.X1]
capability = "9.0"
memory_gib = 1
fp32_tflops = 10
fp16_tflops = 80
bf16_tflops = 80
bandwidth_gb_per_s = 500
host_gb_per_s = 10
measured = ""
seen = "2026-11-27"
source = "a sheet"
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


@settings(max_examples=25)
@given(PROFILES)
def test_only_times_are_modelled(one: Profile) -> None:
    roomy = gpu("R", 1e9)
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
    large = replace(large, moment_bytes=2 * large.parameter_bytes)
    one = profile(layer(0), layer(1), large)
    with pytest.raises(InputError, match=r"layer 2 \(Head\) needs 3\.0 GiB alone.* X2 has 2 GiB"):
        TABLE.check_room(one, TABLE.gpus["X2"])
    with pytest.raises(InputError, match=r"or one of X2-4GB$"):
        TABLE.check_room(one, TABLE.gpus["X1"])
    TABLE.check_room(one, TABLE.gpus["X2-4GB"])
    larger = replace(large, parameter_bytes=3 * GIB)
    with pytest.raises(InputError, match="no GPU of the table has it"):
        TABLE.check_room(profile(larger), TABLE.gpus["X1"])


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
    assert TABLE.gpus["X1"].arithmetic("fp32") == (
        "fp32 without tensor cores, 10 TFLOPS at most; bf16 on them would take 0.12 of the time of "
        "products (80 TFLOPS)"
    )
    assert OLD.arithmetic("fp32").endswith("10 TFLOPS at most; it has no bf16")
    assert TABLE.gpus["X1"].arithmetic("bf16") == (
        "bf16 on tensor cores, 80 TFLOPS at most, with parameters, gradients and moments in fp32"
    )


def test_products_in_bf16_take_the_rate_of_tensor_cores_and_all_else_its_bytes() -> None:
    work = Work(product_flops=2e13, product_bytes=4e10, other_bytes=4e11, kernels=1)
    # 80 TFLOPS x 0.25, then 500 GB/s x 0.8.
    assert TABLE.seconds(work, TABLE.gpus["X1"], "bf16") == pytest.approx(1.0 + 1.0)
    assert TABLE.seconds(work, TABLE.gpus["X1"], "fp32") == pytest.approx(4.0 + 1.0)
    issued = replace(work, product_flops=0.0, kernels=10**6)
    assert TABLE.seconds(issued, TABLE.gpus["X1"], "bf16") == pytest.approx(30.0)
    assert TABLE.seconds(issued, TABLE.gpus["X1"]) == pytest.approx(10.0)
    moved = replace(work, product_flops=0.0)
    assert TABLE.seconds(moved, TABLE.gpus["X1"], "bf16") == TABLE.seconds(
        moved, TABLE.gpus["X1"], "fp32"
    )
    made = TABLE.modelled(profile(layer(0)), TABLE.gpus["X1"], "bf16").layers[0]
    assert made.forward_s == TABLE.seconds(layer(0).forward, TABLE.gpus["X1"], "bf16")
    assert made.optimizer_s == TABLE.seconds(layer(0).optimizer, TABLE.gpus["X1"])


def test_bf16_below_sm_80_is_refused_with_the_remedy_in_one_line() -> None:
    words = (
        "train.precision = 'bf16' begins at sm_80 and one O is sm_75; take \"fp32\", or a type "
        "with one of X1, X2, X2-4GB"
    )
    with pytest.raises(InputError) as found:
        TABLE.modelled(profile(layer(0)), OLD, "bf16")
    assert str(found.value) == words
    assert found.value.exit_code == 2
    TABLE.check_precision(OLD, "fp32")
    TABLE.check_precision(TABLE.gpus["X1"], "bf16")


def test_the_installed_table_says_where_each_figure_is_from_and_what_was_measured() -> None:
    gpus = load_gpus().gpus
    rates = {n: (g.sm, g.fp32_tflops, g.fp16_tflops, g.bf16_tflops) for n, g in gpus.items()}
    assert rates["T4"] == ("sm_75", 8.1, 65, 0)
    assert rates["L4"] == ("sm_89", 30.3, 121, 121)
    assert rates["A100"] == ("sm_80", 19.5, 312, 312)
    assert rates["H100"] == ("sm_90", 67, 989, 989)
    assert all(gpu.origin.source for gpu in gpus.values())
    for one in gpus.values():
        assert (one.doubt == "") == bool(one.measured)
        assert not one.measured or (RESULTS / f"{one.measured}.json").is_file(), one.name
        of_it = [file.stem for file in RESULTS.glob(f"*-nvidia-{one.name.lower()}.json")]
        assert bool(of_it) == bool(one.measured), f"results of a {one.name} are {of_it}"
    assert TABLE.gpus["X1"].times("bf16").endswith(": modelled, not yet measured on this card.")
    known = replace(TABLE.gpus["X1"], measured="2026-12-01-x1").times("bf16")
    assert known.endswith(": modelled; what was measured on such a card is in docs/gpu.md.")
    assert TABLE.gpus["X1"].doubt == "modelled, not yet measured on this card"
    assert replace(TABLE.gpus["X1"], measured="2026-12-01-x1").doubt == ""


@pytest.mark.parametrize(
    ("line", "precision", "within"),
    [("executor, 2 issued", "bf16", 0.02), ("executor, fp32", "fp32", 0.15)],
)
def test_narrow_layers_take_about_what_they_took_in_the_executor_on_the_card_that_was_measured(
    line: str, precision: str, within: float
) -> None:
    table = load_gpus()
    gpu = table.find("H200")
    shape = {"layers": 12, "width": 1024, "heads": 16, "context": 1024, "vocabulary": 256}
    counted = gpt_profile(job="j", microbatch=4, dropout=0.0, precision=precision, **shape)
    made = table.modelled(counted, gpu, precision).layers
    kept = json.loads((RESULTS / f"{gpu.measured}-one-process.json").read_text())["lines"]
    (busy,) = [one for one in kept if one.startswith(f"{line} ")]
    forward_ms, backward_ms = (float(re.search(f"'{x}': ([0-9.]+)", busy)[1]) for x in "FB")
    modelled_s = sum(layer.both_s for layer in made)
    assert modelled_s == pytest.approx((forward_ms + backward_ms) / 1e3, rel=within)


def test_the_table_is_read_and_a_damaged_one_refused() -> None:
    table = parse_gpus(TEXT)
    assert (table.kernel_s, table.bf16_kernel_s) == pytest.approx((1e-5, 3e-5))
    assert table.gpus == {"X1": TABLE.gpus["X1"]}
    for old, new in (
        ("schema_version = 4", "schema_version = 3"),
        ("tensor_share = 0.25", "tensor_share = 0"),
        ('capability = "9.0"', 'capability = "7.5"'),
        ("bf16_tflops = 80", "bf16_tflops = 0"),
        ("fp16_tflops = 80", "fp16_tflops = -1"),
        ('source = "a sheet"', ""),
        ('seen = "2026-11-27"', 'seen = "lately"'),
        ('seen = "a day"', ""),
        ("product_share = 0.5", "product_share = 1.5"),
        ("bandwidth_share = 0.8", "bandwidth_share = 0"),
        ("copy_share = 0.5", "copy_share = 1.1"),
        ("host_gb_per_s = 10", "host_gb_per_s = 0"),
        ("\nkernel_us = 10", "\nkernel_us = 0"),
        ("bf16_kernel_us = 30", "bf16_kernel_us = 0"),
        ("bf16_kernel_us = 30", ""),
        ("fp32_tflops = 10", "fp32_tflops = -1"),
        ("bf16_tflops = 80", "bf16_tflops = -1"),
        ("memory_gib = 1", ""),
    ):
        with pytest.raises(ValueError):
            parse_gpus(TEXT.replace(old, new))
