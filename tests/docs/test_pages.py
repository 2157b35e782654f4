"""Pages link to what exists, name files that exist, and are all in the index."""

import os
import re

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
SOURCE_FILE = re.compile(r"[\w.<>*-]+(/[\w.<>*-]+)+\.(py|md|yaml|yml|toml|j2|sbatch)")
FOLDERS = ("runner", "workloads", "datasets", "conf", "tests", "scripts", "deploy", "docs", ".github", ".ci")
OTHER_REPOSITORIES = "docs/mlperf_rules.md"  # cites files of MLCommons' repositories


def test_links_resolve(pages, root):
    by_path = {page.path: page for page in pages}
    broken = []
    for page in pages:
        for target in LINK.findall(page.prose):
            if re.match(r"https?://|mailto:", target):
                continue
            file, _, heading = target.partition("#")
            path = (page.path.parent / file).resolve() if file else page.path
            if not path.exists() or (heading and path in by_path and heading not in by_path[path].anchors):
                broken.append(f"{page.name}: {target}")
    assert not broken


def test_cited_files_exist(pages, root):
    """A placeholder, `<name>` or GROUP, stands for any name."""
    missing = []
    for page in pages:
        for span in CODE_SPAN.findall(page.prose):
            words = [word.rstrip(",.:") for word in span.split() if not set("{=") & set(word)]
            for path in filter(lambda word: is_cited(word, page.name), words):
                pattern = re.sub(r"<[^>]+>|\b[A-Z][A-Z_]+\b(?=/|$)", "*", path).rstrip("/")
                if not any(root.glob(pattern)):
                    missing.append(f"{page.name}: {path}")
    assert not missing


def is_cited(word, page):
    """Return whether `word` of a code span is a path in this repository."""
    if word.split("/")[0] in FOLDERS and "/" in word:
        return True
    return page != OTHER_REPOSITORIES and SOURCE_FILE.fullmatch(word) is not None


def test_scripts_in_code_blocks_can_be_run(pages, root):
    scripts = {
        word for page in pages for line in page.code for word in re.findall(r"(?<![\w/.])scripts/[\w./-]+", line)
    }
    assert scripts
    assert not [name for name in scripts if not (root / name).is_file()]
    assert not [name for name in scripts if not (name.endswith(".py") or os.access(root / name, os.X_OK))]


def test_index_names_every_page(pages, root):
    docs = root / "docs"
    index = next(page for page in pages if page.path == docs / "README.md")
    named = {(docs / target.partition("#")[0]).resolve() for target in LINK.findall(index.prose) if "://" not in target}
    notebooks = set(docs.glob("*.ipynb"))
    assert named == {page.path for page in pages if docs in page.path.parents} - {index.path} | notebooks


def test_documents_every_exit_code(pages):
    from timetrial.runner.core.errors import Exit

    page = next(page for page in pages if page.name == "docs/run_directory.md")
    rows = [int(code) for code in re.findall(r"^\| (\d+) \|", page.prose, re.M)]
    assert rows == sorted(map(int, Exit))


def test_glossary_is_alphabetical(pages):
    page = next(page for page in pages if page.name == "docs/glossary.md")
    terms = [row.lower() for row in re.findall(r"^\| ([^|]+?) \|", page.prose, re.M)[1:] if not row.startswith("-")]
    assert terms == sorted(set(terms))


def test_glossary_names_existing_classes(pages, root):
    page = next(page for page in pages if page.name == "docs/glossary.md")
    names = set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", page.prose))
    source = "".join(path.read_text() for folder in FOLDERS[:3] for path in (root / folder).rglob("*.py"))
    assert names
    assert names <= set(re.findall(r"^class (\w+)", source, re.M))


def test_the_readme_and_its_pictures_stay_small(root):
    assert len((root / "README.md").read_text().splitlines()) <= 150
    assert not [path.name for path in (root / "docs" / "images").iterdir() if path.stat().st_size > 200_000]
