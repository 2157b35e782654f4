"""Mistakes on the command line: each ends with one sentence that says what to write instead, and an exit code."""

import pytest

from timetrial.runner.cli.main import run_command
from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.rank_pool import RankPool

CONFIGURATION, DATA, DEVICE = Exit.CONFIGURATION, Exit.DATA, Exit.DEVICE
RUN = "run accelerator=cpu "
MISTAKES = [
    # Options instead of overrides, and words without "=".
    ("run --gpus=2", "--gpus=2 is not an option of timetrial run: write gpus=2.", CONFIGURATION),
    ("run --seed 3", "--seed 3 is not an option of timetrial run: write seed=3.", CONFIGURATION),
    ("run --workload resnet50", "write workload=resnet50.", CONFIGURATION),
    ("run --batch-size 4", "write recipe.global_batch_size=4 or tuning.micro_batch_size=4.", CONFIGURATION),
    ("run -g 2", "write KEY=VALUE, such as seed=1.", CONFIGURATION),
    ("run -m --seed 3", "write seed=3.", CONFIGURATION),
    ("throughput --gpus=2", "is not an option of timetrial throughput: write gpus=2.", CONFIGURATION),
    ("estimate --gpus=2", "is not an option of timetrial estimate: write gpus=2.", CONFIGURATION),
    (RUN + "--cfg nonsense", "choose from", CONFIGURATION),
    (RUN + "--config-dir nowhere", "--config-dir nowhere is no folder", CONFIGURATION),
    (RUN + "resnet50", "write workload=resnet50.", CONFIGURATION),
    (RUN + "resnt50", "write workload=resnet50.", CONFIGURATION),
    (RUN + "bf16", "write precision=bf16.", CONFIGURATION),
    (RUN + "mini", "write scale=mini.", CONFIGURATION),
    (RUN + "seed = 3", "write seed=VALUE without spaces around =", CONFIGURATION),
    # Keys that do not exist.
    (RUN + "gpu=2", "There is no key gpu: did you mean gpus=2?", CONFIGURATION),
    (RUN + "GPUS=2", "did you mean gpus=2?", CONFIGURATION),
    (RUN + "precison=bf16", "did you mean precision=bf16?", CONFIGURATION),
    (RUN + "lr=0.1", "did you mean recipe.training.learning_rate=0.1?", CONFIGURATION),
    (RUN + "epochs=3", "did you mean recipe.max_epochs=3?", CONFIGURATION),
    (RUN + "batch_size=3", "tuning.micro_batch_size=3?", CONFIGURATION),
    (RUN + "recipe.max_epoch=3", "did you mean recipe.max_epochs=3?", CONFIGURATION),
    (RUN + "recipe.training.learnin_rate=1", "did you mean recipe.training.learning_rate=1?", CONFIGURATION),
    (RUN + "+recipe.training.learnin_rate=1", "did you mean learning_rate?", CONFIGURATION),
    (RUN + "workload=cifar10 recipe.training.label_smoothing=0.1", "write +recipe.training.label", CONFIGURATION),
    (RUN + "recipe.target={v05:{hit_rat:1}}", "target.v05.hit_rat: did you mean hit_rate?", CONFIGURATION),
    (RUN + "nonsense=1", "There is no key nonsense: timetrial run --help lists groups and keys.", CONFIGURATION),
    (RUN + "~nonsense", "~nonsense removes a key that does not exist: leave it out.", CONFIGURATION),
    (RUN + "+gpus=2", "gpus is set already: write gpus=2 without +.", CONFIGURATION),
    (RUN + "+workload=ssd", "write workload=NAME without +", CONFIGURATION),
    (RUN + "hydra.swep.dir=x", "hydra.sweep.dir=x?", CONFIGURATION),
    # Choices of groups that do not exist.
    (RUN + "workload=resnt50", "did you mean workload=resnet50? Choose one of cifar10, cnn,", CONFIGURATION),
    (RUN + "scale=refrence", "did you mean scale=reference?", CONFIGURATION),
    (RUN + "precision=fp8", "choose one of bf16, fp16, fp32, tf32.", CONFIGURATION),
    (RUN + "model=resnet51", "did you mean model=resnet50?", CONFIGURATION),
    (RUN + "recipe=ncf/none", "choose one of ncf/embedded, ncf/mini,", CONFIGURATION),
    (RUN + "hydra/launcher=foo", "hydra/launcher=foo is not known: choose one of basic, ", CONFIGURATION),
    ("run accelerator=h20", "did you mean accelerator=h200?", CONFIGURATION),
    # Values of the wrong type or range.
    (RUN + "gpus=two", "gpus must be a whole number, not two.", CONFIGURATION),
    (RUN + "time_limit_seconds=5m", "time_limit_seconds must be a number, not 5m.", CONFIGURATION),
    (RUN + "resume=maybe", "resume must be true or false, not maybe.", CONFIGURATION),
    (RUN + "seed=-1", "timetrial: seed must be from 0 to 2**63 - 1, not -1.", CONFIGURATION),
    (RUN + "seed=1,2", "seed=1,2 has several values: choose one, or add -m to timetrial run or ", CONFIGURATION),
    (RUN + "seed=range(1,4)", "seed=range(1,4) has several values: choose one, or add -m to ", CONFIGURATION),
    (RUN + f"run_dir={'long' * 100}", "... (File name too long): choose a shorter name.", CONFIGURATION),
    (RUN + "seeds=3", "seeds holds other keys: set one of them, such as seeds.initialization=VALUE.", CONFIGURATION),
    (RUN + "target=0.5", "target holds other keys: set one of them, such as target.hit_rate=VALUE.", CONFIGURATION),
    (RUN + "device=cpu", "There is no key device: write accelerator=cpu.", CONFIGURATION),
    (RUN + "num_gpus=2", "There is no key num_gpus: write gpus=2.", CONFIGURATION),
    (RUN + "help", "help is not an override: write timetrial run --help.", CONFIGURATION),
    (RUN + "--help-all", "--help-all is not an option of timetrial run: write timetrial run --help.", CONFIGURATION),
    (RUN + "recipe.target={", "cannot be read: quote values with special characters", CONFIGURATION),
    (RUN + "resume=true", "add run_dir=FOLDER", CONFIGURATION),
    # Data and machines.
    (RUN + "scale=reference", "run timetrial data fetch ml-20m, or name your file", DATA),
    (RUN + "workload=ssd scale=mini", "run timetrial data fetch bccd, or put", DATA),
    (RUN + "workload=cifar10 scale=mini data_dir=other", "cifar-10-batches-bin --data-dir other", DATA),
    ("run accelerator=h200 gpus=99", "use ", DEVICE),
]


@pytest.mark.integration
@pytest.mark.parametrize(("command", "sentence", "exit_code"), MISTAKES, ids=[command for command, *_ in MISTAKES])
def test_mistake_is_answered_with_its_remedy(command, sentence, exit_code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(command.split(" "), RankPool()) == exit_code
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == 1, output
    assert sentence in lines[0]
    assert not (tmp_path / "runs").exists()


def test_mistakes_are_different():
    assert len({command for command, *_ in MISTAKES}) == len(MISTAKES) >= 50


@pytest.mark.parametrize("arguments", [["--version"], ["run", "--version"], ["data", "--version"]])
def test_version_is_that_of_timetrial(arguments, capsys):
    from timetrial import __version__

    assert run_command(arguments, RankPool()) == Exit.TARGET_REACHED
    assert capsys.readouterr().out == f"timetrial {__version__}\n"
