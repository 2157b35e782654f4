"""Names that were renamed do not come back in their old role; docs/glossary.md has the words that hold."""
# ruff: noqa: SIM905 - a list of words reads better as text

import ast
import re
from collections import Counter

import pytest
import yaml

CLASSES = """
    Crew Workshop Part Receipt Patience _Passing Store Tell Step Progress Lines Tastes Scenes Shapes Counted Meeting
    Held Share FixedSteps Measured Cell SpeedCell Figure Place Pictures View Photographs SameBatch Trained Element
    Stopwatch Cards CardReading Wheel Drawn Draws Interactions TokenBatches Sentences
""".split()
FUNCTIONS = """
    go_on whole_file whole_folder counted judge sentence differences opened announced work _close _note_the_start
    _watched make_ready bare most first_alone mix start_stream _obey facts look blame suppress works ahead of_sheet
    vocabulary_loss chances moves uploaded as_json for_tables cannot_write as_facts
""".split()
PARAMETERS = "alone share keeper lead spread seeds_of_run to_the_end told said there".split()
ATTRIBUTES = "own content waited_seconds bare ended".split()
MODULES = """
    crew workshop whole receipts acquire operations consumption differences refusals nodes stopping listing job cells
    lines borrowed statistics on_card reading suppression accelerator counted summary utils helpers manager base
""".split()
KEYS = """
    longest filter least_area drops draws judged_proposals eval_users_at_once stage price prepared tastes focus skew
    clip_norm eval_every first_eval runs initialisation order decay_epochs pyramid
""".split()
# A local name that says nothing about what it holds may appear this often, in code that nobody has touched since.
MOST_VAGUE_LOCALS = {"found": 10, "words": 20, "told": 0, "said": 0, "there": 0, "mine": 0, "wish": 0}


@pytest.fixture(scope="module")
def trees():
    from pathlib import Path

    root = Path(__file__).resolve().parents[1]
    paths = [path for folder in ("datasets", "runner", "workloads") for path in (root / folder).rglob("*.py")]
    return {path: ast.parse(path.read_text()) for path in paths}


def nodes(trees, *kinds):
    return [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, kinds)]


def test_no_class_has_an_old_name(trees):
    assert not {node.name for node in nodes(trees, ast.ClassDef)} & set(CLASSES)


def test_no_function_has_an_old_name(trees):
    assert not {node.name for node in nodes(trees, ast.FunctionDef, ast.AsyncFunctionDef)} & set(FUNCTIONS)


def test_no_parameter_has_an_old_name(trees):
    assert not {node.arg for node in nodes(trees, ast.arg)} & set(PARAMETERS)


def test_no_attribute_has_an_old_name(trees):
    assigned = {node.attr for node in nodes(trees, ast.Attribute) if isinstance(node.ctx, ast.Store)}
    fields = {node.target.id for node in nodes(trees, ast.AnnAssign) if isinstance(node.target, ast.Name)}
    assert not (assigned | fields) & set(ATTRIBUTES)


def test_no_module_has_an_old_name(trees):
    assert not {path.stem for path in trees} & set(MODULES)


def test_no_configuration_key_has_an_old_name(root):
    def keys(node):
        for key, value in node.items() if isinstance(node, dict) else ():
            yield str(key)
            yield from keys(value)

    for path in (root / "conf").rglob("*.yaml"):
        if path.name != "config.yaml":
            assert not set(keys(yaml.safe_load(path.read_text()))) & set(KEYS), path


def test_locals_say_what_they_hold(trees):
    stored = [node.id for node in nodes(trees, ast.Name) if isinstance(node.ctx, ast.Store)]
    counts = Counter(name for name in stored if name in MOST_VAGUE_LOCALS)
    assert not {name: count for name, count in counts.items() if count > MOST_VAGUE_LOCALS[name]}


def test_nobody_says_card(trees, root):
    """GPU or device, except for words of others: product names and the columns of peaks.json."""
    allowed = re.compile(r"""["'`]cards?["'`]|graphics card|\bcardinal|discard""")
    lines = [
        (path.name, line.strip())
        for path in trees
        for line in path.read_text().splitlines()
        if re.search(r"\bcards?\b", line, re.I) and not allowed.search(line)
    ]
    assert not lines
