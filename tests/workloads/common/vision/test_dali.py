"""NVIDIA DALI is imported only for data=dali, when its loader is constructed."""

import re
import subprocess
import sys

DALI_MODULES = ("workloads/common/vision/dali.py", "workloads/ssd/dali_color_jitter.py")


def test_only_two_modules_import_dali(root):
    for path in root.glob("[cdrw]*/**/*.py"):  # conf, datasets, runner, workloads
        text, name = path.read_text(), path.relative_to(root).as_posix()
        assert not re.search(r"\bnvidia\.dali\b", text) or name in DALI_MODULES, name
        named = re.search(r"import .*\bdali\w*\b|\bdali\w* import", text)
        assert not named or name in DALI_MODULES or path.name == "dali_loader.py", name


def test_loaders_import_without_dali():
    names = ("common.vision.dali", "common.imagenet.dali_loader", "ssd.dali_loader")
    program = f"import sys\nfor name in {names}: __import__(f'timetrial.workloads.{{name}}')\n"
    program += "assert not [name for name in sys.modules if name.startswith('nvidia.dali')]"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)
