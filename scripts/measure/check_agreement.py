"""Compare `timetrial check` with the official checker on published logs, each under the rules of its own round.

    python -P -m timetrial.scripts.measure.check_agreement FOLDER...

Prints a JSON line for each log on which they disagree, and the counts. Logs are found below folders of rounds (v5.0).
"""

import argparse
import json
import logging
import re
from collections import Counter
from pathlib import Path

from mlperf_logging.compliance_checker import mlp_compliance

from timetrial.runner.mlperf import compliance, official_checker


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=1, help="check only every n-th log of a round")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    counts: Counter[str] = Counter()
    for log in sorted(path for folder in options.folders for path in folder.rglob("result_*.txt")):
        round_ = next((part for part in reversed(log.parts) if re.fullmatch(r"v\d\.\d", part)), "")
        ruleset = f"{round_.removeprefix('v')}.0"
        counts[f"{round_} found"] += 1
        if ruleset not in official_checker.rulesets() or counts[f"{round_} found"] % options.every:
            continue
        official, verdict = _passes_officially(log, ruleset), compliance.check(log)
        # A log that misses its target fails officially; here it "complies, not converged" or is not judged.
        agrees = bool(verdict.compliant and verdict.converged) is official
        counts[f"{round_} checked"] += 1
        counts[f"{round_} {'agree' if agrees else 'disagree'}"] += 1
        if not agrees:
            print(json.dumps({"log": str(log), "official": official, "verdict": verdict.summary, **vars(verdict)}))
    print(json.dumps(counts))


def _passes_officially(log: Path, ruleset: str) -> bool:
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", ruleset, quiet=True, werror=False)
    try:
        return bool(checker.check_file(str(log), f"training_{ruleset}/common.yaml"))
    except Exception as error:  # the checker has no errors of its own
        print(json.dumps({"log": str(log), "raised": f"{type(error).__name__}: {error}"}))
        return False


if __name__ == "__main__":
    main()
