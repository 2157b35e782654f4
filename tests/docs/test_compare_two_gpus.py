"""The guide's commands for two GPUs, on the GPUs that people have."""

import re

import hydra
import pytest

from timetrial.runner.config.compose import CONFIG_NAME, expand_sweep, initialize, register_schema
from timetrial.runner.config.override_rules import complete
from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.hardware.pytorch_build import install_command

from .test_commands import commands, hydra_overrides

FILES = ("t4", "v100", "a100", "h100", "h200", "auto")  # an MI300X and an Arc have none of their own


def compose(accelerator, overrides):
    register_schema()
    with initialize():
        return validate(hydra.compose(CONFIG_NAME, overrides=complete([f"accelerator={accelerator}", *overrides])))


@pytest.fixture
def gpu_commands(pages):
    """The commands of the guide that train or measure on GPUs."""
    guide = [page for page in pages if page.name == "docs/compare_two_gpus.md"]
    lines = [hydra_overrides(words) for _, words in commands(guide)]
    found = [line for line in lines if line and not any("accelerator=" in word for word in line)]
    assert len(found) == 2
    return found


@pytest.mark.parametrize("accelerator", FILES)
def test_commands_of_the_guide_run_on_every_gpu(gpu_commands, accelerator):
    for line in gpu_commands:
        first = next(iter(expand_sweep(line)))
        assert compose(accelerator, first).precision.name == "fp16"


@pytest.mark.parametrize(("accelerator", "title"), [("t4", "T4"), ("v100", "V100")])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_format_that_a_gpu_lacks_is_refused_before_the_run(accelerator, title, precision):
    sentence = f"{title} has no {precision}: use precision=fp16 or precision=fp32."
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        compose(accelerator, [f"precision={precision}"])


def test_table_of_builds_agrees_with_the_doctor(pages):
    (page,) = (page for page in pages if page.name == "docs/getting_started.md")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \| `(uv pip [^`]+)` \|$", page.prose, re.M)
    assert {"V100", "AMD Instinct and Radeon"} < {gpus for gpus, _, _ in rows}
    for _, capabilities, command in rows:
        for capability in re.findall(r"\d+\.\d|gfx\w+", capabilities):
            assert install_command(capability, "13.0" if "cu" in command else None).endswith(command), capability
