"""Rules of what is safe to deploy, beside each other on recorded errors of single samples.

    python safety_rules.py errors --out results/safety.json

`errors` is the folder that `safety_errors.py` has written. A rule sees some samples of a network,
with two copies of each, and takes the cheapest plan that holds on them and that it calls safe,
else FP32 without TF32. What is cheap is the estimated time, or the share of layers kept, by which
more plans beat FP32. Counted are draws with no fresh sample over, and how dear what was taken is,
in percent of FP32 above the cheapest plan that no fresh sample is over with.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from precision_bisect.pipeline.risk import KINDS_APART, LEAST_ERROR, Spread, factor
from precision_bisect.runs.results.unseen import SAFE
from precision_bisect.trial import OneByOne

COUNTS, DRAWS, SEED = (1, 2, 4, 8), 40, 53
LARGEST = {1: 4.0, 2: 3.0, 4: 2.25, 8: 1.75}
"""By how much the largest of so many samples and their copies is to stay below the limit."""
LOST = 1e6
"""An error that stands for no figure."""
FEW_OVER = 0.01
"""A smaller share than `SAFE`."""

Plan = Mapping[str, Any]
Rule = Callable[[Sequence[Plan], Sequence[int]], list[bool]]
"""For some plans, and the numbers of the samples that are seen, whether each plan is safe."""


def judged(plan: Plan, seen: Sequence[int]) -> OneByOne:
    """Return what a rule sees of a plan."""
    errors, copies = ([plan[key][i] for i in seen] for key in ("errors", "copies"))
    return OneByOne(numbers=[*seen], errors=errors, copies=copies)


def largest(plan: Plan, seen: Sequence[int]) -> float:
    """Return the largest error of samples and copies."""
    return float(max(max(plan["errors"][i], *plan["copies"][i]) for i in seen))


def by_spread(plans: Sequence[Plan], seen: Sequence[int]) -> list[bool]:
    """Call safe what the product does; where errors are of two kinds nothing is unsafe."""
    spreads = [Spread.of(judged(plan, seen), 1.0) for plan in plans]
    return [spread is None or spread.error(SAFE) <= 1 for spread in spreads]


def by_spread_and_kinds(plans: Sequence[Plan], seen: Sequence[int]) -> list[bool]:
    """Call safe what the product does, and nothing where errors are of two kinds."""
    spreads = [Spread.of(judged(plan, seen), 1.0) for plan in plans]
    return [spread is not None and spread.error(SAFE) <= 1 for spread in spreads]


def by_smaller_share(plans: Sequence[Plan], seen: Sequence[int]) -> list[bool]:
    """Call safe what the product would by `FEW_OVER`."""
    spreads = [Spread.of(judged(plan, seen), 1.0) for plan in plans]
    return [spread is None or spread.error(FEW_OVER) <= 1 for spread in spreads]


def by_largest(plans: Sequence[Plan], seen: Sequence[int]) -> list[bool]:
    """Call safe what leaves the largest error of samples and copies a margin by their number."""
    return [LARGEST[len(seen)] * largest(plan, seen) <= 1 for plan in plans]


def by_pooled_spread(plans: Sequence[Plan], seen: Sequence[int]) -> list[bool]:
    """Call safe by the largest spread of any of the plans, and nothing where there are two kinds.

    Samples are hard or easy for all plans alike, so each plan tells something of the others.
    """
    logs = [[math.log(max(plan["errors"][i], LEAST_ERROR)) for i in seen] for plan in plans]
    spreads = [Spread.of(judged(plan, seen), 1.0) for plan in plans]
    own = [each.sd for each in spreads if each is not None]
    among = [stdev(each) if len(each) > 1 else 0.0 for each in logs]
    sd = max([*own, *among], default=math.inf)
    apart = [any(b - a >= KINDS_APART for a, b in pairwise(sorted(each))) for each in logs]
    return [
        not two and math.exp(fmean(each) + factor(len(seen), SAFE) * sd) <= 1
        for each, two in zip(logs, apart, strict=True)
    ]


def unchecked(plans: Sequence[Plan], seen: Sequence[int]) -> list[bool]:
    """Call everything safe that holds."""
    return [True] * len(plans)


RULES: Mapping[str, Rule] = {
    "holds alone": unchecked,
    "spread": by_spread,
    "spread, two kinds unsafe": by_spread_and_kinds,
    "spread, 1%": by_smaller_share,
    "largest of samples and copies": by_largest,
    "spread of all plans": by_pooled_spread,
}


def main() -> None:
    """Count for each rule, number of samples and network, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("errors", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--by", choices=("time", "kept"), default="kept")
    asked = parser.parse_args()
    paths = sorted(path for folder in asked.errors for path in folder.glob("*.json"))
    networks = [json.loads(path.read_text()) for path in paths]
    rows = [row for network in networks for row in counted(network, asked.by)]
    asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(table(rows)))


def counted(network: Mapping[str, Any], by: str) -> list[dict[str, Any]]:
    """Return a row for each rule and number of samples."""
    fp32: Plan = {"cost": 1.0, "fresh": [0.0]}
    plans: list[Plan] = [
        {**plan, "cost": plan["time"] if by == "time" else plan["kept"] / plan["of"]}
        for plan in network["plans"]
        if (plan["plan"] != "FP32" or plan["tf32"]) and plan["errors"][0] < LOST
    ]
    if not plans:
        return []
    clean = [plan["cost"] for plan in (*plans, fp32) if max(plan["fresh"]) <= 1]
    rng, rows = np.random.default_rng(SEED), []
    for count in COUNTS:
        drawn = [
            sorted(rng.permutation(len(plans[0]["errors"]))[:count].tolist()) for _ in range(DRAWS)
        ]
        for name, rule in RULES.items():
            chosen = [_chosen(plans, seen, rule) or fp32 for seen in drawn]
            rows.append(
                {
                    "network": network["network"],
                    "rule": name,
                    "samples": count,
                    "none_over": fmean(max(plan["fresh"]) <= 1 for plan in chosen),
                    "dearer": fmean(plan["cost"] for plan in chosen) - min(clean),
                    "plans": len(plans),
                }
            )
    return rows


def _chosen(plans: Sequence[Plan], seen: Sequence[int], rule: Rule) -> Plan | None:
    safe = rule(plans, seen)
    holding = [
        plan
        for plan, is_safe in zip(plans, safe, strict=True)
        if is_safe and largest(plan, seen) <= 1 and plan["cost"] <= 1
    ]
    return min(holding, key=lambda plan: float(plan["cost"]), default=None)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines of a table: draws with none over, networks with none ever, and the cost."""
    networks = {row["network"] for row in rows}
    head = " | ".join(f"{count} samples" for count in COUNTS)
    lines = [f"{len(networks)} networks", "", f"| rule | {head} |", f"|---|{'---|' * len(COUNTS)}"]
    for rule in RULES:
        cells = []
        for count in COUNTS:
            own = [row for row in rows if (row["rule"], row["samples"]) == (rule, count)]
            share, always = (
                fmean(row["none_over"] for row in own),
                [row["none_over"] for row in own],
            )
            dearer = fmean(row["dearer"] for row in own)
            cells.append(f"{share:.1%}, {sum(s == 1 for s in always)}, {100 * dearer:+.1f}")
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
