"""Sphinx builds a site from the pages of the repository, where their links work too; scripts/dev/make_site calls it."""

from sphinx.application import Sphinx

import timetrial

# Sections of the sidebar. A page that none names is an error of the build.
SECTIONS = {
    "First steps": "getting_started compare_two_gpus running own_data datasets clusters vendors",
    "Workloads": "workloads/*",
    "Numbers": "results throughput_and_rooflines telemetry calibration peaks luck parity",
    "Reference": "configuration site/api run_directory mlperf_rules glossary",
    "Development": "architecture adding_a_workload /CONTRIBUTING /SECURITY /CHANGELOG",
    "Performance": "/workloads/*/PERFORMANCE",
}

project = html_title = "timetrial"
version = release = timetrial.__version__
author = copyright = "The timetrial developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/workloads/*.md", "docs/site/api.rst", "workloads/*/PERFORMANCE.md"]
exclude_patterns = ["docs/README.md"]  # the sidebar is its index
myst_heading_anchors = 4
default_role = "code"  # docstrings are Markdown here
autodoc_typehints = "description"
html_theme = "furo"
html_extra_path = ["start"]  # index.html leads to the first page
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False


def add_sidebar(app: Sphinx, page: str, content: list[str]) -> None:
    """Append the tables of contents to the first page, whose text in the repository has none."""
    if page == root_doc:
        for section, pages in SECTIONS.items():
            paths = "\n".join(path if path.startswith("/") else f"/docs/{path}" for path in pages.split())
            content[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {section}\n\n{paths}\n```\n"


def setup(app: Sphinx) -> None:
    """Register the sidebar."""
    app.connect("source-read", add_sidebar)
