"""scripts/README.md names every script."""

import re

NOT_CALLED = {"README.md", "__init__.py"}


def test_index_names_every_script(root):
    """A path in a table is below the folder of its section; a folder stands for its files."""
    folder, named = "", set()
    for line in (root / "scripts" / "README.md").read_text().splitlines():
        if heading := re.match(r"## `(.+)`", line):
            folder = heading[1]
        elif row := re.match(r"\| `(.+?)` \|", line):
            named.add(folder + row[1])
    scripts = {path.relative_to(root / "scripts") for path in (root / "scripts").rglob("*") if path.is_file()}
    scripts = {path for path in scripts if path.name not in NOT_CALLED and "__pycache__" not in path.parts}
    assert named == {str(path) if str(path) in named else f"{path.parent}/" for path in scripts}
