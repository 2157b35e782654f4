"""NVIDIA DALI is imported for data=dali alone, and not before a loader of that name is built."""

import re
import subprocess
import sys

KNOWING = ("workloads/common/vision/dali.py", "workloads/ssd/dali_color_jitter.py")


def test_two_files_know_dali(root):
    for path in root.glob("[cdrw]*/**/*.py"):  # conf, datasets, runner, workloads
        text, name = path.read_text(), path.relative_to(root).as_posix()
        assert not re.search(r"\bnvidia\.dali\b", text) or name in KNOWING, name
        named = re.search(r"import .*\bdali\w*\b|\bdali\w* import", text)
        assert not named or name in KNOWING or path.name == "dali_loader.py", name


def test_the_loaders_are_imported_without_it():
    names = ("common.vision.dali", "common.imagenet.dali_loader", "ssd.dali_loader")
    render = f"import sys\nfor name in {names}: __import__(f'timetrial.workloads.{{name}}')\n"
    render += "assert not [name for name in sys.modules if name.startswith('nvidia.dali')]"
    subprocess.run([sys.executable, "-P", "-c", render], check=True)
