"""Profiles for tests: made-up figures of any layers."""

from hypothesis import strategies as st

from bamboo.planner.profiles.profiled import LayerProfile, Profile, Work

SECONDS = st.floats(min_value=0, max_value=1e3)
COUNTS = st.integers(min_value=0, max_value=10**12)
WORKS = st.builds(
    Work,
    product_flops=st.floats(min_value=0, max_value=1e15),
    product_bytes=st.floats(min_value=0, max_value=1e12),
    other_bytes=st.floats(min_value=0, max_value=1e12),
    kernels=st.integers(min_value=0, max_value=10_000),
)
LAYERS = st.builds(
    LayerProfile,
    name=st.text(max_size=12),
    measured_as=st.integers(min_value=0, max_value=5),
    forward_s=SECONDS,
    backward_s=SECONDS,
    optimizer_s=SECONDS,
    scatter=SECONDS,
    repeats=COUNTS,
    parameters=COUNTS,
    parameter_bytes=COUNTS,
    moment_bytes=COUNTS,
    output_bytes=COUNTS,
    input_gradient_bytes=COUNTS,
    activation_bytes=COUNTS,
    forward=WORKS,
    backward=WORKS,
    optimizer=WORKS,
)
PROFILES = st.builds(
    Profile,
    job=st.text(max_size=12),
    source=st.text(max_size=12),
    modelled=st.booleans(),
    device=st.text(max_size=12),
    machine=st.text(max_size=12),
    torch=st.text(max_size=12),
    threads=COUNTS,
    microbatch=COUNTS,
    context=COUNTS,
    load=SECONDS,
    seen=st.text(max_size=12),
    limit_s=SECONDS,
    layers=st.lists(LAYERS, min_size=1, max_size=6).map(tuple),
)


def layer(index: int, *, name: str = "Block", measured_as: int | None = None) -> LayerProfile:
    """Figures that differ from layer to layer where they were measured apart."""
    like = index if measured_as is None else measured_as
    work = Work(product_flops=2e9, product_bytes=3e6, other_bytes=4e6, kernels=20)
    return LayerProfile(
        name=name,
        measured_as=like,
        forward_s=0.001 * (like + 1),
        backward_s=0.002 * (like + 1),
        optimizer_s=0.0004,
        scatter=0.02,
        repeats=40,
        parameters=1000 * (like + 1),
        moment_bytes=8000 * (like + 1),
        parameter_bytes=4000 * (like + 1),
        output_bytes=100 * (like + 1),
        input_gradient_bytes=100 * like,
        activation_bytes=700 * (like + 1),
        forward=work,
        backward=work,
        optimizer=Work(product_flops=0.0, product_bytes=0.0, other_bytes=5e4, kernels=9),
    )


def profile(*layers: LayerProfile) -> Profile:
    """Measured on a quiet machine."""
    return Profile(
        job="job.toml",
        source="measured on this machine's CPU",
        modelled=False,
        device="cpu",
        machine="a processor, 2 cores",
        torch="2.13.0",
        threads=1,
        microbatch=2,
        context=128,
        load=0.1,
        seen="2026-11-21",
        limit_s=60.0,
        layers=layers or (layer(0, name="Embedding"), layer(1), layer(2, measured_as=1), layer(3)),
    )
