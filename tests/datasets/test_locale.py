"""Data are prepared under a locale without UTF-8, below a folder whose name such a locale cannot show."""

import ast
import os
import subprocess
import sys

import pytest

ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SMALL = {
    "ncf": ["recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}"],
    "resnet50": ["recipe.data.generate={train_per_class: 2, val_per_class: 1}"],
    "ssd": ["recipe.data.generate={num_train: 4, num_val: 2}"],
    "transformer": ["recipe.data.generate={num_train: 60, num_test: 5}", "recipe.data.vocabulary_size=300"],
}


@pytest.mark.integration
@pytest.mark.parametrize("workload", SMALL)
def test_prepares_data_below_a_folder_with_an_accent(tmp_path, workload):
    folder = tmp_path / "données"
    folder.mkdir()
    arguments = [f"workload={workload}", *SMALL[workload]]
    result = subprocess.run(
        [sys.executable, "-P", "-m", "timetrial", "data", "prepare", *arguments],
        env=os.environ | ASCII_LOCALE, cwd=folder, capture_output=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode(errors="replace")[-2000:]
    assert any(path.is_file() for path in folder.rglob("*"))


def names_its_encoding(call):
    """Return whether a call of `open`, `Path.read_text` or `Path.write_text` is binary or names its encoding."""
    if isinstance(call.func, ast.Attribute):
        if call.func.attr not in {"read_text", "write_text"} or getattr(call.func.value, "id", "") == "manifest":
            return True
    elif getattr(call.func, "id", "") != "open":
        return True
    modes = [argument.value for argument in call.args[1:] if isinstance(argument, ast.Constant)]
    return any("b" in str(mode) for mode in modes) or any(keyword.arg == "encoding" for keyword in call.keywords)


def test_every_text_file_names_its_encoding(root):
    calls = [
        (path, node)
        for folder in ("datasets", "workloads")
        for path in sorted((root / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    unnamed = [f"{path.relative_to(root)}:{call.lineno}" for path, call in calls if not names_its_encoding(call)]
    assert not unnamed
    assert not names_its_encoding(ast.parse("open(path)").body[0].value)
    assert not names_its_encoding(ast.parse("path.write_text(text)").body[0].value)
    assert names_its_encoding(ast.parse("open(path, 'rb')").body[0].value)
