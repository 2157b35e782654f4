"""The generated pages are current and explain every key."""

from dataclasses import dataclass, field


@dataclass
class Inner:
    """What is inside."""

    rate: float = 1e-8
    """Learning
    rate."""
    sizes: list[int] = field(default_factory=lambda: [40, 50])


@dataclass
class Outer(Inner):
    """An example."""

    name: str | None = None
    """Name with a | in it."""
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    """Several."""


def test_every_configuration_key_has_a_meaning(make_docs):
    sections = make_docs.configuration_keys()
    assert {"", "recipe", "ncf Training", "ssd Data", "ssd Data with `data=synthetic`"} <= sections.keys()
    assert not [f"{section}: {key.name}" for section, keys in sections.items() for key in keys if not key.meaning]


def test_every_key_of_the_run_record_has_a_meaning(make_docs):
    from timetrial.runner.record.run_record import RunRecord

    assert not [key.name for key in make_docs.keys_of(RunRecord) if not key.meaning]


def test_generated_pages_are_current(make_docs):
    stale = [
        path.name for path, text in make_docs.generate_pages().items() if not path.exists() or path.read_text() != text
    ]
    assert not stale, "run scripts/dev/make_docs.py"


def test_reads_types_defaults_and_meanings(make_docs):
    rows = {key.name: (key.type, key.default, key.meaning) for key in make_docs.keys_of(Outer)}
    assert rows == {
        "rate": ("float", "`1e-08`", "Learning rate."),
        "sizes": ("list[int]", "`[40, 50]`", ""),
        "name": ("str or null", "`null`", "Name with a | in it."),
        "inner": ("mapping or null", "`null`", "What is inside."),
        "inner.rate": ("float", "`1e-08`", "Learning rate."),
        "inner.sizes": ("list[int]", "`[40, 50]`", ""),
        "many": ("list[mapping]", "`[]`", "Several."),
        "many[].rate": ("float", "`1e-08`", "Learning rate."),
        "many[].sizes": ("list[int]", "`[40, 50]`", ""),
    }
    assert "| `name` | str or null | `null` | Name with a \\| in it. |" in make_docs.table(make_docs.keys_of(Outer))


def test_fills_marked_blocks_only(make_docs):
    page = "a\n<!-- begin generated: timetrial.runner.record.run_record.Attempt -->\nold\n<!-- end generated -->\nb\n"
    filled = make_docs.fill_generated_blocks(page)
    assert filled.startswith("a\n<!-- begin")
    assert filled.endswith("<!-- end generated -->\nb\n")
    assert "| `hostname` | str |" in filled
    assert "old" not in filled
    assert make_docs.fill_generated_blocks(filled) == filled
