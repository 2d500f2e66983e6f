"""The configuration tree: one frozen value for a whole job, as read from a TOML job file.

Each field is a key of `[section]` in the file, with the same name and the default given here. A
test compares `examples/reference.toml`, which lists every key with its default, with this tree.
Units are in the names. Values are checked by `bamboo.config.load`, not here.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from bamboo.errors import CoreMisuse
from bamboo.topology.strategy import AUTO, HOST, LAYER

TOKENS = "tokens"
PREPARED = (TOKENS, "text", "jsonl", "arrow")
"""The sources that a run reads as a token file."""
LIVE = "live"
"""The value of `cluster.search` with which strategies are tried while the run goes on."""
HF = "hf:"
"""What begins the name of a Hugging Face model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters, which are trained in place of the matrices that they stand beside."""

    rank: int = 0
    """0: there are none."""
    alpha: float = 16.0
    """An adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """The last part of the names of linear layers, such as `q_proj`."""
    dropout: float = 0.0
    """Of an adapter's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`model = "gpt"`; `"hf:PATH"`: a Hugging Face model in a folder; or `"file.py:build"`: a
    function in the user's file that returns a list of layers. Paths are relative to the job
    file."""

    model: str = "gpt"
    layers: int = 8
    """Transformer blocks; the list of layers is embedding + blocks + head."""
    width: int = 256
    heads: int = 8
    context: int = 128
    """Tokens per sequence."""
    vocabulary: int = 256
    """Left out, it is that of the tokens, where the data are tokens; bytes have 256."""
    dropout: float = 0.1
    tied: bool = False
    """Share the embedding's weight with the head, across the first and the last stage."""
    split: str = "layers"
    """Of a model of the user's own: `layers`, its function returns a list of them; `trace`, it
    returns a whole module, which is traced and cut."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Of a Hugging Face model: train adapters, and freeze all else."""
    requirements: str = ""
    """EC2 only: a file of pinned requirements, `NAME==VERSION` a line, which each instance installs
    from wheels that the launch brings; relative to the job file. On this machine the model finds
    what is installed here."""
    wheelhouse: str = ""
    """A folder with the wheels of these requirements; empty: pip gets them as it is set up."""

    @property
    def is_gpt(self) -> bool:
        """Whether it is the built-in GPT."""
        return self.model == "gpt"

    @property
    def is_hf(self) -> bool:
        """Whether it is a Hugging Face model."""
        return self.model.startswith(HF)

    @property
    def hf_folder(self) -> str:
        """The folder of a Hugging Face model, as the job names it."""
        return self.model.removeprefix(HF)

    @property
    def is_own(self) -> bool:
        """Whether a file of the user's makes the layers."""
        return not (self.is_gpt or self.is_hf)

    @property
    def is_traced(self) -> bool:
        """Whether a whole module is traced and cut into layers."""
        return self.split == "trace"

    @property
    def own_file(self) -> str:
        """The file of a user's own model, as the job names it."""
        return self.model.partition(":")[0]

    @property
    def own_function(self) -> str:
        """The function in that file that makes the layers."""
        return self.model.partition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """`source = "python-stdlib"`: the running interpreter's own library sources, bytes as tokens;
    `"path"`: the user's text file, or all files below a directory, bytes as tokens; `"tokens"`: a
    token file (`bamboo/token_files.py`), for a job in an account also `s3://BUCKET/KEY`. `bamboo
    prepare` makes a token file of `"text"` (text files), `"jsonl"` (lines of JSON) and `"arrow"` (a
    folder saved by `datasets`).
    `"file.py:data"`: a function in the user's file that returns what is trained on
    (`bamboo.data.dataset.Data`); what it reads at `path` is no part of the run's code."""

    source: str = "python-stdlib"
    path: str = ""
    max_bytes: int = 0
    """Bytes of the text, from its beginning; 0: all of it. Of bytes as tokens alone."""
    tokenizer: str = ""
    """The file of the tokenizer (`tokenizer.json`)."""
    field: str = "text"
    """The key, or the column, that has the text of a document, or its tokens."""
    documents: str = "packed"
    """`packed`: one after the other, cut into windows of `model.context` tokens; `padded`: each by
    itself, cut behind that length, and masked where others of its microbatch are longer."""
    end: str = AUTO
    """The token that is put behind each document; `none`; or `auto`: the one that ends a document
    for the tokenizer, if it has one of the usual names."""
    in_image: bool = False
    """EC2 only: the image of the instances has the token file at `path`, so none is brought."""

    @property
    def is_prepared(self) -> bool:
        """Whether `bamboo prepare` must have seen these data, or made tokens of them."""
        return self.source in PREPARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters that are trained in a way of their own, or not at all."""

    match: str
    """A pattern over global names, `<layer>.<name>`, as of files: `0.*`, `*.bias`."""
    learning_rate_factor: float = 1.0
    """Times the learning rate of the step."""
    weight_decay: float | str = AUTO
    """Of each parameter that it matches; `auto`: `train.weight_decay`, of matrices alone."""
    frozen: bool = False
    """They keep their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Steps, seed, slices of the batch and optimizer: all of these decide bits."""

    steps: int = 100
    batch: int = 16
    """Sequences per optimizer step over all pipelines."""
    microbatch: int = 2
    """Sequences per microbatch."""
    virtual_nodes: int = 0
    """Fixed slices of the batch; 0: the smallest power of two >= pipelines."""
    seed: int = 1
    optimizer: str = "adamw"
    """`adamw`, `adam`, `sgd`, `adagrad`, `rmsprop`, `adafactor`, or `"file.py:make"`: a function in
    the user's file that returns one (`bamboo.models.Optimizer`)."""
    schedule: str = "cosine"
    """The way to `final_learning_rate` after the warm-up: `cosine`, `linear`, `constant` (it stays
    at `learning_rate`), or `"file.py:schedule"`: a function in the user's file that gives the
    learning rate of each step."""
    learning_rate: float = 1e-3
    warmup_steps: int = 10
    final_learning_rate: float = 1e-4
    """Learning rate at the last step."""
    weight_decay: float = 0.1
    """Of parameters with two or more dimensions."""
    beta1: float = 0.9
    beta2: float = 0.95
    """Also what `rmsprop` keeps of its mean of squares each step."""
    epsilon: float = 1e-8
    momentum: float = 0.0
    """Of `sgd` and `rmsprop`; 0: none, and no memory for it."""
    nesterov: bool = False
    """Of `sgd`."""
    group: tuple[Group, ...] = ()
    """Parameters with a learning rate or a weight decay of their own, or frozen ones."""
    clip_norm: float = 1.0
    """Global gradient norm limit; 0 switches clipping off."""
    precision: str = "fp32"
    """`fp32`, or `bf16`: layers compute in bfloat16 where torch's autocast does, and what one layer
    hands to the next is bfloat16; parameters, gradients and moments stay float32."""
    init: str = ""
    """`run:ID` or `run:ID@step`: begin with the weights of another run, after its last step or
    after this one; `dcp:FOLDER`: with those that torch.distributed.checkpoint wrote; empty: with
    weights that the layers draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConfig:
    """When an evaluation ends the run: `patience` evaluations in a row are no better than the best
    one before them."""

    metric: str = ""
    """`loss`, or a metric of the model; empty: evaluations never end the run."""
    patience: int = 1
    better: str = AUTO
    """`lower` or `higher`; `auto`: lower for `loss`. Any other metric needs one of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """An evaluation between two steps: forwards alone, on data of its own, which change no bit of
    the training."""

    every_steps: int = 0
    """Steps between two evaluations; the first one comes after so many steps. 0: there are none."""
    source: str = ""
    """As in `[data]`, whose tokenizer and other keys hold here, too; of `"file.py:held_out"`, what
    the function returns. Empty: the `eval_data` of the model."""
    path: str = ""
    samples: int = 0
    """How many samples, from the beginning of the data."""
    stop: StopConfig = field(default_factory=StopConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Finished steps of a run that continues with more (`bamboo resume RUN --steps N`). It had a
    learning rate of its own, whose schedule counts from its first step."""

    to_step: int
    """Number of finished steps at its end."""
    steps: int
    """Number of steps planned then, at which its schedule ends."""
    learning_rate: float
    warmup_steps: int
    final_learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The grid, the redundancy, and the time limits of the members; only `threads` decides bits."""

    pipelines: int = 1
    max_pipelines: int = 0
    """Most pipelines to which the run grows while there are nodes; 0: as many as `pipelines`."""
    stages: int = 4
    cut: tuple[int, ...] = ()
    """First layer of each stage, starting with 0; empty: balanced by the planner."""
    redundancy: str = "auto"
    """A mode, one for each stage with commas between them, or `auto`: the one that fits with the
    most samples per dollar, losses counted. The planner sets it before anything is started."""
    recompute: str = "auto"
    """`off`, or `layer`: a layer keeps its input alone until its backward, which computes it again
    (activation checkpointing): less memory, a longer backward, the same bits; or `auto`: `layer`
    where the plan does not fit without. The planner sets it before anything is started."""
    replica_moments: str = AUTO
    """Where a replica's moments lie: on its node's `device`; on its `host`, from where each step
    brings them to the device and back; or `auto`: on the host where the plan does not fit
    otherwise. The bits are the same. The planner sets it before anything is started."""
    sync: str = AUTO
    """How gradients pass between pipelines and to shadows: the name of a builder of
    `bamboo.planner.sync.builders`, or `file.py:function`, a builder of the user's. The bits are the
    same. The plan turns it into rules before anything is started."""
    search: str = "off"
    """`live`: other strategies are tried while the run goes on; or `off`."""
    standbys: int = 0
    """Nodes beyond the grid that wait for a slot; they are paid like the others."""
    spread: str = "auto"
    """How the nodes are spread over `cloud.zones`: `one` (all in the cheapest), `pipelines` (each
    pipeline within one), `neighbours` (those of a ring in different ones), or `auto`: the cheapest
    by the planner, bytes between zones and fatal losses counted."""
    device: str = AUTO
    """`cpu`; `cuda`: the first NVIDIA GPU of the machine; `virtual`: computes on the CPU, then
    sleeps to the figures below; or `auto`: in an account `cuda` where the instance types have a
    GPU, otherwise `cpu`, settled before anything is started. For tests, `lagging`: computes on the
    CPU, and is done with each operation and copy only later, as a GPU is."""
    allow_idle_gpu: bool = False
    """Let nodes compute on the CPU of instances whose GPU is paid all the same."""
    threads: int = 1
    """Torch threads per worker; part of the numerics."""
    transport: str = "ipc"
    """`ipc` on one host, `tcp` between hosts (always with keys)."""
    encrypt: bool = True
    """CURVE encryption on tcp; without it the run's key is a password sent in plain text."""
    check_replicas: bool = False
    """Hash owner and shadow after every step and stop when they differ."""
    virtual_forward_ms: tuple[float, ...] = (20.0,)
    """Per stage, or one figure for all."""
    virtual_backward_ms: tuple[float, ...] = (40.0,)
    virtual_speeds: tuple[float, ...] = ()
    """Relative speed of the virtual devices of each zone of `cloud.zones`; 1 is the speed of the
    figures above. Empty: all are equal."""
    virtual_link_gbps: float = 0.0
    """0: the link is not slowed."""
    virtual_link_latency_ms: float = 0.0
    beat_ms: int = 200
    suspect_s: float = 1.0
    gone_s: float = 3.0
    forming_timeout_s: float = 120.0
    step_timeout_s: float = 120.0
    """A step that makes no progress for this long ends the run with a fault, never a hang."""
    patience_s: float = 30.0
    """Time to wait for lost nodes before a reconfiguration to the remaining ones."""
    park_s: float = 3600.0
    """Time that a run without enough nodes waits for capacity before it ends."""

    @property
    def own_builder(self) -> tuple[str, str] | None:
        """The file and the function of the user's own builder; None: it is one by name."""
        if "." not in self.sync and ":" not in self.sync:
            return None
        file, _, function = self.sync.partition(":")
        return file, function

    @property
    def recomputes(self) -> bool:
        """Whether backwards compute their layers again; False while it is left to a plan."""
        return self.recompute == LAYER

    @property
    def moments_on_host(self) -> bool:
        """Whether the moments of replicas lie in the host's memory; False while it is left to a
        plan."""
        return self.replica_moments == HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """The subnet of the account's network for the instances of one zone."""

    zone: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudConfig:
    """Where instances come from. A job on EC2 takes missing values from the user's account file
    (`bamboo.config.account`), if that is for the same region."""

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
    """Number of nodes of a spot run that are on demand instead, so the cloud takes none of them."""
    pool_out_s: float = 180.0
    """Time for which a type and zone without capacity is not asked again."""
    gang_s: float = 60.0
    """Time after which nodes are ended if fewer than the run needs to form have come."""
    boot_s: float = 0.0
    """Local cloud only: the modelled time from an instance's start to its agent's."""
    stack: str = "bamboo"
    """EC2 only: the name of the stack in `terraform/`, as a prefix for what a launch creates for
    its run in addition to instances."""
    launch_template: str = ""
    """EC2 only, like the keys below: name or id (`lt-...`); empty: the default name of
    `terraform/`."""
    image: str = ""
    """Empty: the launch template's."""
    subnets: tuple[Subnet, ...] = ()
    """One per zone; empty: the default subnet of each zone."""
    security_group: str = ""
    """Empty: that of the launch template. If it is given, each pool is asked separately, because a
    call over several pools takes the template's."""
    instance_profile: str = ""
    """Empty: that of a role which the launch creates for the run and which reaches this run alone.
    If it is given, the user chooses its rights, and each pool is asked separately."""
    bucket: str = ""
    """Holds wheels and runs, which an instance fetches at its boot."""
    python: str = "3.12"
    """The Python of the instances' image, which `model.requirements` are brought for."""
    boot_script: str = ""
    """A file that each instance runs at its first boot, in place of the template's; relative to the
    job file. A line that sets the bucket precedes it. Empty: the launch template's."""
    store_secret: str = ""
    """The reference of the secret with the store's address; never its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One listed preemption: when `stage` of `pipeline` reaches `phase` of `step` (and local
    microbatch, for forward and backward) its instance goes. With `notice_s` > 0 a notice comes at
    that step instead, and the instance goes `notice_s` later."""

    step: int
    stage: int
    pipeline: int = 0
    phase: str = "forward"
    """forward, backward, exchange, ship or step; or evaluation, of the one before the step."""
    microbatch: int = 0
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosConfig:
    """Planned preemptions: listed ones, and random ones drawn from a seed."""

    kill: tuple[Kill, ...] = ()
    seed: int = 0
    kills_per_hour: float = 0.0
    """Random preemptions over the whole cluster, drawn from `seed`."""
    notice_share: float = 0.0
    """Share of the random preemptions that come with a notice of `notice_s`."""
    notice_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """State that is stored outside the nodes, in case too many of them are lost at once."""

    every_steps: int | str = AUTO
    """`auto`: the planner sets a number before anything is started, the best one for losses that no
    live copy survives, or none (0) if all steps take no longer than five minutes. 0: only emergency
    checkpoints. State that no live node holds after a loss without a notice is then lost, and the
    run with it."""
    url: str = ""
    """A directory, or `s3://bucket/prefix`; empty: `checkpoints` in the run's folder, which in an
    account is in `cloud.bucket`."""
    keep: int = 2
    """Number of newest checkpoints that are kept."""
    keep_hours: float = 0.0
    """Checkpoints younger than this are kept too."""

    @property
    def interval(self) -> int:
        """Steps between two checkpoints; 0: none. Raises CoreMisuse while it is left to a plan."""
        if isinstance(self.every_steps, str):
            raise CoreMisuse("checkpoint.every_steps is 'auto': plan the job, or give a number")
        return self.every_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleConfig:
    """Whether the run chooses its own number of nodes, and by which criterion."""

    enabled: bool = False
    """Grow from `pipelines` towards `max_pipelines` while the next nodes are worth it."""
    min_nodes: int = 0
    """0: one whole pipeline, and standbys."""
    max_nodes: int = 0
    """0: those of `cluster.max_pipelines`, and standbys."""
    marginal: float = 0.1
    """The next nodes are worth it while each brings this share of what a present node brings."""
    utility: str = "none"
    """What finishing sooner is worth: `none`; `step`, utility_usd until the deadline; `linear`,
    falling to nothing at the deadline."""
    utility_usd: float = 0.0
    deadline_hours: float = 0.0
    """After the start of the run."""
    again_s: float = 60.0
    """A request for nodes without success is not repeated for this long, or for `cloud.pool_out_s`
    if that is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetConfig:
    """Limits that end a run before its last step; 0: there is no such limit."""

    max_usd: float = 0.0
    max_hours: float = 0.0
    max_instances: int = 0
    """The most instances at any time."""
    partial: bool = False
    """Launch even if the plan cannot finish within these limits; the run stops at them."""
    free_first_hour: bool = False
    """Bills of this run count a spot instance that the cloud takes within its first hour as free,
    by EC2's terms. Plans never do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The experiment trackers that show a run. They decide no number, and a resumed run may have
    others."""

    to: tuple[str, ...] = ()
    """Names of `bamboo.config.check.TRACKERS`."""
    project: str = "bamboo"
    """The project of wandb and trackio, the experiment of mlflow, the service of otlp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """A whole job."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    cloud: CloudConfig = field(default_factory=CloudConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    chaos: ChaosConfig = field(default_factory=ChaosConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    autoscale: AutoscaleConfig = field(default_factory=AutoscaleConfig)
    log: LogConfig = field(default_factory=LogConfig)
    file: str = ""
    """The job file's path, for messages and for paths relative to it."""
    segments: tuple[Segment, ...] = ()
    """The finished segments of a run, the first one first; [train] belongs to the segment after
    them. No job file has any."""
    tokens: str = ""
    """The token file that [data] is read from, once it was found; empty: the data are no token
    file."""
    weights: str = ""
    """The digest of the weights that the run begins with, once they were read: those that
    `train.init` names, or else those of a Hugging Face model's folder."""
    evaluated_on: str = ""
    """The digest of the data of `[eval]`, once they were looked at."""
    unit: str = ""
    """The unit of the model's own data, once they were looked at; empty: the data are text."""
    code: str = ""
    """Folder with the code that a run copied at launch (`bamboo/user_code`); empty: the model is
    loaded from the file that the job names."""
    wheels: str = ""
    """The digest of the wheels that a run's instances install, once `model.requirements` were
    found."""
    pretrained: str = ""
    """Folder with the weights of a Hugging Face model that a run keeps since its launch; empty:
    they are read from the folder that the job names."""

    @property
    def counted(self) -> str:
        """What is counted, in the singular: `token` for text, `image`."""
        return self.unit or "token"

    @property
    def reads_text(self) -> bool:
        """Whether the run's data are the text or the tokens of [data], or are made of them by a
        Hugging Face model. A model's own data are in its code."""
        return not self.unit or (self.model.is_hf and "data.source" not in self.own)

    @property
    def tokens_per_sample(self) -> int:
        """Of text; 0 for a model's own data, which are counted in samples alone."""
        return 0 if self.unit else self.model.context

    @property
    def own(self) -> dict[str, str]:
        """What the user's own code gives: key -> `file.py:function`, as the job names it. The
        module of the first one is the entry to the code that a run takes along."""
        own = {"model.model": self.model.model} if self.model.is_own else {}
        named = {
            "data.source": self.data.source,
            "eval.source": self.eval.source,
            "train.optimizer": self.train.optimizer,
            "train.schedule": self.train.schedule,
        }
        return own | {key: value for key, value in named.items() if "." in value or ":" in value}

    @property
    def brings(self) -> tuple[str, ...]:
        """The keys that name what a run takes along, in the order of `own`: the user's own code,
        and a Hugging Face model."""
        return (*self.own, *(("model.model",) if self.model.is_hf else ()))

    @property
    def evaluated(self) -> DataConfig:
        """The data that `[eval]` names: of bytes, no more than is evaluated; of tokens, with what
        `[data]` says of its own."""
        chosen = self.eval
        if chosen.source in PREPARED:
            like = self.data if self.data.is_prepared else DataConfig()
            return replace(like, source=chosen.source, path=chosen.path, in_image=False)
        most = chosen.samples * self.model.context + 1 if chosen.samples else 0
        return DataConfig(source=chosen.source, path=chosen.path, max_bytes=most)

    def named(self, path: str) -> Path:
        """The path of a file that the job names: relative to the job file."""
        return Path(self.file).parent / path
