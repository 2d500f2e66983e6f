"""Jobs to simulate without a model: profiles that are fitted to published step times.

Rule: a profile is a few figures and their sources. BERT-large as in the paper (Thorpe et al.,
Bamboo, NSDI 2023): its published step times with 4, 3, 2 and 1 pipelines of 12 stages are
(microbatches + 11) x 43.7 ms to within 0.7 %, with microbatches of 3 samples. This is the time of
one forward one backward (Narayanan et al., PipeDream, SOSP 2019) with equal stages. So one figure,
the 43.7 ms that a stage needs for forward and backward of a microbatch, gives all of them, and also
other cuts and merged nodes, for which nothing was published.
"""

from bamboo.planner.profiles.workload import WorkloadFigures, uniform_workload
from bamboo.topology.virtual_nodes import BatchShape

STAGE_S = 0.0437
STAGES = 12
LAYERS_OF_A_STAGE = 2
"""24 layers, as BERT-large has them."""
PARAMETERS = 340_000_000
"""Parameters of BERT-large (Devlin et al., NAACL 2019), spread evenly over the layers, embeddings
included."""
WIDTH, TOKENS = 1024, 512
NETWORK_BYTES_PER_S = 2.5e9 / 8
"""The baseline of a p3.2xlarge."""


def bert_large() -> WorkloadFigures:
    """264 samples in 88 microbatches, 44 virtual nodes; 24 equal layers."""
    layers = STAGES * LAYERS_OF_A_STAGE
    layer_s = STAGE_S / LAYERS_OF_A_STAGE
    return uniform_workload(
        name="BERT-large",
        source="fitted to the step times published with Bamboo (NSDI 2023), to within 0.7 %",
        layers=layers,
        forward_s=layer_s / 3,
        backward_s=layer_s * 2 / 3,
        parameters=PARAMETERS // layers,
        moment_bytes=8 * (PARAMETERS // layers),
        output_bytes=3 * TOKENS * WIDTH * 4,
        shape=BatchShape(virtual_nodes=44, microbatches=2),
        batch=264,
        state_bytes_per_s=NETWORK_BYTES_PER_S,
        store_bytes_per_s=NETWORK_BYTES_PER_S,
    )
