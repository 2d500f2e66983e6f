"""The configuration tree: one frozen value for a whole job, as read from a TOML job file.

Each field is a key of `[section]` in the file, with the same name and the default given here. The
file `examples/reference.toml` lists every key with its default and is held against this tree by a
test. Units are in the names. Values are checked by `bamboo.config.load`, not here.
"""

from dataclasses import dataclass, field
from pathlib import Path

from bamboo.errors import CoreMisuse
from bamboo.topology.strategy import AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`model = "gpt"`, or `"file.py:build"`: a function of the user's (path relative to the job
    file) that returns a list of layers."""

    model: str = "gpt"
    layers: int = 8
    """Transformer blocks; the list of layers is embedding + blocks + head."""
    width: int = 256
    heads: int = 8
    context: int = 128
    """Tokens per sequence."""
    vocabulary: int = 256
    dropout: float = 0.1
    tied: bool = False
    """Share the embedding's weight with the head, across the first and the last stage."""

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own, and not the built-in GPT."""
        return self.model != "gpt"

    @property
    def own_file(self) -> str:
        """The file of a user's own, as the job names it."""
        return self.model.partition(":")[0]

    @property
    def own_function(self) -> str:
        """The function in it that makes the layers."""
        return self.model.partition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """`source = "python-stdlib"`: the running interpreter's own library sources, bytes as tokens;
    `source = "path"`: the user's text file, or all files below a directory."""

    source: str = "python-stdlib"
    path: str = ""
    max_bytes: int = 0
    """Of the text, from its begin; 0: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How long, from which seed, in which slices, with which optimizer: all of it decides bits."""

    steps: int = 100
    batch: int = 16
    """Sequences per optimizer step over all pipelines."""
    microbatch: int = 2
    """Sequences per microbatch."""
    virtual_nodes: int = 0
    """Fixed slices of the batch; 0: the smallest power of two >= pipelines."""
    seed: int = 1
    learning_rate: float = 1e-3
    warmup_steps: int = 10
    final_learning_rate: float = 1e-4
    """Reached at the last step along a cosine."""
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    """Global gradient norm limit; 0 switches clipping off."""
    precision: str = "fp32"
    init: str = ""
    """`run:ID` or `run:ID@step`: begin with the weights of another run, after its last step or
    after this one; empty: with those that the layers draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Steps that are done, of a run that goes on with more (`bamboo resume RUN --steps N`). It had
    a learning rate of its own, whose schedule counts from its first step."""

    to_step: int
    """So many steps were done when it ended."""
    steps: int
    """So many were planned then: its schedule reaches its end with them."""
    learning_rate: float
    warmup_steps: int
    final_learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The grid, the redundancy, and the time limits of the members; only `threads` decides bits."""

    pipelines: int = 1
    max_pipelines: int = 0
    """The run grows to so many while there are nodes; 0: as many as `pipelines`."""
    stages: int = 4
    cut: tuple[int, ...] = ()
    """First layer of each stage, starting with 0; empty: balanced by the planner."""
    redundancy: str = "auto"
    """A mode, one for each stage with commas between, or `auto`: that of the most samples per
    dollar that fits, losses counted. The planner puts it here before anything is started."""
    standbys: int = 0
    """Nodes beyond the grid that wait for a slot; they are paid like the others."""
    spread: str = "auto"
    """How the nodes lie over `cloud.zones`: `one` (all in the cheapest), `pipelines` (each
    pipeline within one), `neighbours` (those of a ring in different ones), or `auto`: whichever
    the planner finds cheapest, bytes between zones and fatal losses counted."""
    device: str = "cpu"
    """`cpu`, or `virtual`: computes, then sleeps to the figures below."""
    threads: int = 1
    """Torch threads per worker; part of the numerics."""
    transport: str = "ipc"
    """`ipc` on one host, `tcp` between hosts (always with keys)."""
    encrypt: bool = True
    """CURVE encryption on tcp; without it the run's key is a password sent in the clear."""
    check_replicas: bool = False
    """Hash owner and shadow after every step and stop when they differ."""
    virtual_forward_ms: tuple[float, ...] = (20.0,)
    """Per stage, or one figure for all."""
    virtual_backward_ms: tuple[float, ...] = (40.0,)
    virtual_speeds: tuple[float, ...] = ()
    """How fast the virtual devices of each zone of `cloud.zones` are, 1: as the figures above say;
    empty: all are alike."""
    virtual_link_gbps: float = 0.0
    """0: the link is not slowed."""
    virtual_link_latency_ms: float = 0.0
    beat_ms: int = 200
    suspect_s: float = 1.0
    gone_s: float = 3.0
    forming_timeout_s: float = 120.0
    step_timeout_s: float = 120.0
    """A step that makes no progress for so long ends the run with a fault, never a hang."""
    patience_s: float = 30.0
    """So long lost nodes are waited for before the run is laid out anew for those that are left."""
    park_s: float = 3600.0
    """So long a run without enough nodes waits for capacity before it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """Where instances of one zone lie in the account's network."""

    zone: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudConfig:
    """Where instances come from. Of a job on EC2, what it does not say comes from the user's
    account file (`bamboo.config.account`), if that is of the same region."""

    provider: str = "local"
    """`local` (the EC2 code against a mock on this machine) or `ec2`."""
    region: str = "us-east-1"
    zones: tuple[str, ...] = ("us-east-1a", "us-east-1b")
    instance_types: tuple[str, ...] = ("g4dn.xlarge",)
    market: str = "spot"
    """`spot` or `on-demand`."""
    prefer: str = "price"
    """Which types come first: `price`, the cheapest; `value`, those whose hour costs least for the
    speed of their GPUs, by published figures."""
    anchors: int = 0
    """So many of the nodes of a spot run are on demand instead: the cloud takes none of them."""
    pool_out_s: float = 180.0
    """So long a type and zone without capacity is not asked again."""
    gang_s: float = 60.0
    """When fewer nodes than the run needs to form have come for so long, they are ended."""
    boot_s: float = 0.0
    """Local cloud only: the modelled time from an instance's start to its agent's."""
    stack: str = "bamboo"
    """EC2 only: the name of the stack in `terraform/`, in front of what a launch makes for its run
    beside instances."""
    launch_template: str = ""
    """EC2 only, as the keys below: name or id (`lt-...`); empty: the name that
    `terraform/` gives by default."""
    image: str = ""
    """Empty: the launch template's."""
    subnets: tuple[Subnet, ...] = ()
    """One a zone; empty: the default subnet of each zone."""
    security_group: str = ""
    """Empty: that of the launch template. Named, each pool is asked by itself: a call over several
    takes the template's."""
    instance_profile: str = ""
    """Empty: that of a role which the launch makes for the run, and which reaches this run alone.
    Named, its rights are the user's to choose; and each pool is asked by itself."""
    bucket: str = ""
    """Of wheels and runs; what an instance fetches at its boot."""
    boot_script: str = ""
    """A file that each instance runs at its first boot, in place of the template's; relative to the
    job file. The bucket stands in front of it. Empty: the launch template's."""
    store_secret: str = ""
    """Which secret says how the store is reached; never what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One listed preemption: when `stage` of `pipeline` reaches `phase` of `step` (and local
    microbatch, for forward and backward) its instance goes; `notice_s` > 0: a notice comes at
    that step instead and the instance goes so many seconds later."""

    step: int
    stage: int
    pipeline: int = 0
    phase: str = "forward"
    """forward, backward, exchange, ship or step."""
    microbatch: int = 0
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosConfig:
    """Preemptions ordered beforehand: listed ones, and random ones drawn from a seed."""

    kill: tuple[Kill, ...] = ()
    seed: int = 0
    kills_per_hour: float = 0.0
    """Random preemptions over the whole cluster, drawn from `seed`."""
    notice_share: float = 0.0
    """Share of the random preemptions that come with a notice of `notice_s`."""
    notice_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """What is kept beyond the nodes, for the day that too many of them go at once."""

    every_steps: int | str = AUTO
    """`auto`: the planner puts a number here before anything is started, the best one for losses
    that no live copy survives; none (0) where all steps take no longer than five minutes. 0: none
    but what notices leave without a home; what no live node holds after a loss without a notice is
    lost then, and the run with it."""
    url: str = ""
    """A directory, or `s3://bucket/prefix`; empty: `checkpoints` in the run's folder, which in an
    account is one of `cloud.bucket`."""
    keep: int = 2
    """So many of the newest are kept."""
    keep_hours: float = 0.0
    """Younger ones than this are kept too."""

    @property
    def interval(self) -> int:
        """Steps between two checkpoints; 0: none. Raises CoreMisuse while it is left to a plan."""
        if isinstance(self.every_steps, str):
            raise CoreMisuse("checkpoint.every_steps is 'auto': plan the job, or give a number")
        return self.every_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleConfig:
    """Whether the run chooses its own number of nodes, and what for."""

    enabled: bool = False
    """Grow from `pipelines` towards `max_pipelines` while the next nodes are worth it."""
    min_nodes: int = 0
    """0: one whole pipeline, and standbys."""
    max_nodes: int = 0
    """0: those of `cluster.max_pipelines`, and standbys."""
    marginal: float = 0.1
    """The next nodes are worth it while they bring so much of what those of now bring each."""
    utility: str = "none"
    """What finishing sooner is worth: `none`; `step`, utility_usd by the deadline; `linear`, less
    and less until then."""
    utility_usd: float = 0.0
    deadline_hours: float = 0.0
    """After the start of the run."""
    again_s: float = 60.0
    """A wish for nodes that was in vain is not repeated for so long, or for `cloud.pool_out_s`
    where that is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetConfig:
    """What ends a run before its last step. Of each limit, 0: there is none."""

    max_usd: float = 0.0
    max_hours: float = 0.0
    max_instances: int = 0
    """Never are more of them there at once."""
    partial: bool = False
    """Launch also what the plan cannot finish within these limits: it is stopped at them."""
    free_first_hour: bool = False
    """Bills of this run count a spot instance that the cloud takes within its first hour as free,
    as EC2's terms have it. Plans never do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """A whole job."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    cloud: CloudConfig = field(default_factory=CloudConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    chaos: ChaosConfig = field(default_factory=ChaosConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    autoscale: AutoscaleConfig = field(default_factory=AutoscaleConfig)
    file: str = ""
    """The job file's path, for messages and for paths relative to it."""
    segments: tuple[Segment, ...] = ()
    """The segments of a run that are done, the first one first; [train] is of the one after them.
    No job file has any."""
    weights: str = ""
    """The digest of the weights that `train.init` names, once they were looked at."""
    code: str = ""
    """Folder with the code that a run took along at launch (`bamboo/user_code`); empty: the model
    is loaded from the file that the job names."""

    def named(self, path: str) -> Path:
        """Where a file lies that the job names: relative to the job file."""
        return Path(self.file).parent / path
