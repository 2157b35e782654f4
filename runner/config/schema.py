"""The schema of conf/: one dataclass per configuration group. docs/configuration.md is generated from it."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class WorkloadConfig:
    """conf/workload: the task that is trained."""

    name: str = MISSING
    """Name of the workload."""
    title: str = MISSING
    """Name in tables and titles."""
    benchmark: str = MISSING
    """Benchmark name in the MLPerf log."""
    workload: str = MISSING
    """Import path of the workload class."""
    loaders: dict[str, str] = field(default_factory=dict)
    """Import path of the data class for each value of `data=`."""
    engines: dict[str, str] = field(default_factory=dict)
    """Import path of the engine class for each framework other than PyTorch."""
    preload: list[str] = field(default_factory=list)
    """Modules that the workload imports lazily, and that the processes of its ranks import ahead of the run."""
    compiled: bool = False
    """Whether the model is compiled by default, on accelerators that compile and at the scale `reference`."""
    max_micro_batch: int | None = None
    """Default of `tuning.micro_batch_size` at the scale `reference`, for a global batch that needs more than 80 GB."""


@dataclass
class RecipeConfig:
    """conf/recipe: the hyperparameters, data and target of one workload at one scale."""

    scale: str = MISSING
    """embedded, mini or reference; default: the choice of conf/scale."""
    global_batch_size: int = MISSING
    """Samples of one weight update over all GPUs and micro-batches."""
    first_eval_epoch: int = 1
    """1-based epoch after which the first of the regular evaluations takes place."""
    eval_every_epochs: int = 1
    """Epochs between two regular evaluations."""
    extra_eval_epochs: list[int] = field(default_factory=list)
    """1-based epochs with an evaluation besides the regular ones."""
    max_epochs: int = MISSING
    """Epochs after which a run that has not reached its target ends as censored."""
    max_grad_norm: float | None = None
    """Norm that gradients are clipped to; null: no clipping."""
    target: dict[str, dict[str, float]] = MISSING
    """Quality target per MLPerf round and metric, as fractions or losses."""
    lower_is_better: bool = False
    """Whether a quality meets its target at or below it, like a loss; false: at or above it."""
    training: dict[str, Any] = field(default_factory=dict)
    """Hyperparameters of the workload; see its own table."""
    data: dict[str, Any] = field(default_factory=dict)
    """Settings of the data class; see its own table."""


@dataclass
class RoundConfig:
    """conf/round: the MLPerf round whose targets apply."""

    name: str = MISSING
    """v05 or v07; `round=auto`, the default: the latest round of which the recipe has a target."""


@dataclass
class EngineConfig:
    """conf/engine: the framework, and how it compiles and warms up."""

    name: str = MISSING
    """torch or tensorflow."""
    compile: str | None = None
    """Mode of torch.compile; `tuned`: autotune each kernel, for minutes; null: eager. Default: see docs/running.md."""
    warm_up: bool = True
    """Compile and allocate on synthetic batches before the clock starts; the weights are restored afterwards."""
    capture: bool = True
    """Capture training steps and beam searches in device graphs; false: eager. Default: see docs/running.md."""
    cudnn_benchmark: bool = True
    """Let cuDNN time convolution algorithms (`torch.backends.cudnn.benchmark`). Default: true at `reference`."""
    deterministic: bool = False
    """Use deterministic algorithms only: equal seeds then give equal bits on equal devices; false: the fastest ones."""
    kernels: bool = True
    """Use timetrial's Triton kernels on GPUs; false: PyTorch's operations, for a GPU on which a kernel fails."""


@dataclass
class PrecisionConfig:
    """conf/precision: the number format."""

    name: str = MISSING
    """fp32, tf32, bf16 or fp16."""


@dataclass
class DataConfig:
    """conf/data: the data loader."""

    loader: str = MISSING
    """torch, dali, tfdata or synthetic."""


@dataclass
class AcceleratorConfig:
    """conf/accelerator: data-sheet values of a GPU for the report; null where unknown."""

    name: str = MISSING
    """Name of the GPU, cpu, or auto for the driver's name."""
    threads: int | None = None
    """Host threads of a rank; null: PyTorch's default."""
    vendor: str | None = None
    """Vendor of the GPU."""
    compiles: bool = False
    """Whether torch.compile generates fast code for it. A GPU without a file in conf/accelerator/ is asked."""
    memory_gib: float | None = None
    """Device memory in GiB."""
    bandwidth_gb_s: float | None = None
    """Peak bandwidth of the device memory in GB/s."""
    tflops: dict[str, float | None] = field(default_factory=dict)
    """Peak TFLOP/s per precision, without sparsity."""
    power_watts: float | None = None
    """Power limit in watts."""
    usd_per_gpu_hour: float | None = None
    """Rent of one GPU in dollars an hour."""
    usd_per_gpu: float | None = None
    """Purchase price of one GPU in dollars."""


@dataclass
class TuningConfig:
    """What differs between GPUs without changing the training."""

    micro_batch_size: int | None = None
    """Most samples of one forward pass on one GPU; null: `global_batch_size / gpus`, no gradient accumulation."""


@dataclass
class LauncherConfig:
    """conf/launcher: how ranks are started."""

    name: str = MISSING
    """inline: train in this process; local: a process per rank; slurm, torchrun: the same on every node."""
    nodes: int = 1
    """Nodes that share the run's GPUs evenly."""
    hang_timeout_seconds: float = 45.0
    """Seconds after which a rank that no longer answers ends the run; in an evaluation, four times as long."""
    reuse_process: bool = False
    """Let runs of a sweep on one device that differ only in seeds share a process (docs/running.md, "Sweeps")."""
    interface: str | None = None
    """Network interface between several nodes, such as ib0; null: the one with the address of the node's name."""


@dataclass
class SeedsConfig:
    """Seeds of single random streams; null: derived from `seed`."""

    initialization: int | None = None
    """Seed of the initial weights."""
    data_order: int | None = None
    """Seed of the order of training samples and their augmentation."""
    dropout: int | None = None
    """Seed of dropout."""
    sampling: int | None = None
    """Seed of negative samples and sampled proposals."""


@dataclass
class SubmissionConfig:
    """Header of the MLPerf log."""

    org: str = "unofficial"
    """submission_org."""
    platform: str = "${system}"
    """submission_platform."""
    status: str = "research"
    """submission_status: cloud, onprem, preview or research."""
    poc_name: str = "none"
    """submission_poc_name: whom to ask."""


@dataclass
class CheckpointConfig:
    """When the training state is saved; a stop signal always saves it."""

    every_seconds: float = 600.0
    """Least seconds between two checkpoints at the end of a block."""
    at_end: bool = False
    """Save the final weights after the clock has stopped."""


@dataclass
class ThroughputConfig:
    """Set by `timetrial throughput`."""

    steps: int = 0
    """Training steps and evaluation batches of a block; 0: train to the target."""
    blocks: int = 5
    """Number of blocks."""


@dataclass
class TelemetryConfig:
    """Sampling of GPUs and host."""

    every_seconds: float = 1.0
    """Seconds between two samples; 0: no telemetry."""


@dataclass
class ObserversConfig:
    """What a run writes for other programs."""

    json_lines: bool = False
    """Write events.jsonl to the run directory: one line per event, steps excepted."""
    tensorboard: bool = False
    """Write TensorBoard event files to the run directory's folder tensorboard; needs the tensorboard extra."""
    wandb: bool = False
    """Record the run in Weights & Biases; needs the wandb extra."""
    mlflow: bool = False
    """Record the run in MLflow; needs the mlflow extra."""
    extra: list[str] = field(default_factory=list)
    """Observers of other packages, by their names among the entry points `timetrial.observers`."""


@dataclass
class ProfileConfig:
    """A trace of a few training steps by PyTorch's profiler; such a run has the class `profiled`."""

    steps: str | None = None
    """First and last step of an attempt, such as 10-12; the trace is profile.json.gz in the run directory."""


@dataclass
class Config:
    """The configuration of one run."""

    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    """Choice of conf/workload."""
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    """Choice of conf/recipe; default: `<workload>/<scale>`."""
    round: RoundConfig = field(default_factory=RoundConfig)
    """Choice of conf/round."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Choice of conf/engine."""
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    """Choice of conf/precision."""
    data: DataConfig = field(default_factory=DataConfig)
    """Choice of conf/data."""
    accelerator: AcceleratorConfig = field(default_factory=AcceleratorConfig)
    """Choice of conf/accelerator; default: what this machine has."""
    tuning: TuningConfig = field(default_factory=TuningConfig)
    """What differs between GPUs without changing the training."""
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    """Choice of conf/launcher."""
    division: str = "open"
    """open, or closed: refuse whatever breaks the rules of MLPerf's closed division."""
    clear_caches: bool = False
    """Clear the data's page cache before the ranks start, or end in an error; default: true with `division=closed`."""
    submission: SubmissionConfig = field(default_factory=SubmissionConfig)
    """Header of the MLPerf log."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""
    throughput: ThroughputConfig = field(default_factory=ThroughputConfig)
    """Throughput runs."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Sampling of GPUs and host."""
    observers: ObserversConfig = field(default_factory=ObserversConfig)
    """Output for other programs."""
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    """Trace of a few training steps."""
    target: dict[str, float] = field(default_factory=dict)
    """Quality target by metric, such as `target.bleu=0.30`, in all rounds; default: the recipe's for the round."""
    usd_per_gpu_hour: float | None = None
    """Rent of one GPU in dollars an hour; default: that of the accelerator."""
    gpus: int = 1
    """GPUs, or CPU processes with `accelerator=cpu`."""
    peer_to_peer: bool = True
    """Exchange gradients over NVLink and PCIe; false: by host memory. Default: true unless `NCCL_P2P_DISABLE=1`."""
    seed: int | None = None
    """Seed of the four random streams; null: drawn at random. Default: 1, but null with `division=closed`."""
    seeds: SeedsConfig = field(default_factory=SeedsConfig)
    """Seeds of single random streams."""
    epochs_past_target: int = 0
    """Epochs to train after the target is reached and the clock has stopped."""
    time_limit_seconds: float | None = None
    """Seconds on the clock after which an attempt saves a checkpoint and ends with exit code 11; null: no limit."""
    data_dir: str = "data"
    """Folder of the datasets. Default: taken from `TIMETRIAL_DATA_DIR`, else `data`."""
    staging_dir: str | None = None
    """Node-local disk to copy image folders to, off the clock; null: none. Default: that of `TIMETRIAL_STAGING_DIR`."""
    runs_dir: str = "runs"
    """Folder in which run directories are made."""
    run_dir: str | None = None
    """Run directory; null: a new one below `runs_dir`."""
    resume: bool = False
    """Continue the run in `run_dir`, or start it there if there is none."""
    system: str = MISSING
    """Name of the system; default: the Slurm cluster or the host name."""
