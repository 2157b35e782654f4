"""Logs to report on, and a parser of the report's page."""

import json
from html.parser import HTMLParser

TARGET = 0.24


def write_log(root, system, number, *, qualities, seconds=600.0, num_accelerators=8, batch=1024):
    """Write a log of round v0.7 with one evaluation per epoch; the run fails if no quality reaches the target."""
    submitter = root / "v0.7" / "Maker"
    folder = submitter / system / "gnmt"
    folder.mkdir(parents=True, exist_ok=True)
    (submitter / "systems").mkdir(exist_ok=True)
    description = {"accelerator_model_name": "GPU $1$ <b>", "accelerators_per_node": num_accelerators}
    (submitter / "systems" / f"{system}.json").write_text(json.dumps(description | {"number_of_nodes": 1}))
    start = 1_600_000_000_000
    entries = [
        ("submission_benchmark", "gnmt", {}, 0.0),
        ("global_batch_size", batch, {}, 0.0),
        ("seed", number, {}, 0.0),
    ]
    entries += [("opt_base_learning_rate", 0.002, {}, 0.0), ("run_start", None, {}, 0.0)]
    for epoch, quality in enumerate(qualities, start=1):
        entries.append(("eval_accuracy", quality, {"epoch_num": epoch}, seconds * epoch / (len(qualities) + 0.1)))
    status = "success" if qualities[-1] >= TARGET else "aborted"
    entries.append(("run_stop", None, {"status": status}, seconds))
    entries += [("run_stop", None, {"status": status}, seconds + 1)] * (batch == 2048)  # one more value to infer
    events = [
        {"namespace": "", "time_ms": start + offset * 1000, "key": key, "value": value, "metadata": metadata}
        for key, value, metadata, offset in entries
    ]
    text = "".join(f":::MLLOG {json.dumps(event)}\n" for event in events)
    (folder / f"result_{number}.txt").write_text(text)


class Page(HTMLParser):
    """The rows of tables, the text of elements, and the attributes of every tag."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.open_tags, self.text = [], [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open_tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self.open_tags and self.open_tags.pop()[0] != tag:
            pass

    def handle_data(self, data):
        names = [tag for tag, _ in self.open_tags]
        if names and (cell := {"td", "th"} & set(names)) and cell:
            self.rows[-1][-1] += data
        for tag, attributes in self.open_tags:
            for key in (tag, f".{attributes.get('class')}"):
                self.text[key] = self.text.get(key, "") + data

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def row(self, start):
        """Return the cells of the first row that starts with a text, with single spaces."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]
        return next(row for row in rows if row and row[0].startswith(start))
