"""How fast the engine simulates: request-steps per second on the reference's soak traces.

A step with 64 requests in it counts 64. Run it from the project's root: `python benchmarks/engine_speed.py [REPEATS]`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from inference_lab.config.models import load
from inference_lab.core.engine.cluster import Cluster, simulate
from inference_lab.core.engine.request import Request

ROOT = Path(__file__).parent.parent


def measure(scenario: dict[str, Any]) -> float:
    """Request-steps per second of one run."""
    (model,) = load(str(ROOT / f"configs/{scenario['config']}.toml"), scenario["hardware"]).models
    if model.deployment is None:
        raise ValueError(f"{scenario['config']} has no deployment")
    options = msgspec.structs.replace(model.deployment.scheduler, **scenario["scheduler"])
    cluster = Cluster(msgspec.structs.replace(model.deployment, scheduler=options))
    arrivals = [
        (entry["arrival"], Request(entry["id"], entry["prompt_tokens"], entry["output_tokens"]))
        for entry in scenario["requests"]
    ]
    start = time.perf_counter()
    count = sum(len(step.decodes) + len(step.chunks) for _, step in simulate(cluster, arrivals))
    return count / (time.perf_counter() - start)


def main() -> None:
    """Print the median of several runs per trace."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    scenarios = json.loads((ROOT / "tests/support/golden/schedule.json").read_text())["scenarios"]
    for scenario in scenarios:
        if scenario["name"].startswith("soak_"):
            rates = sorted(measure(scenario) for _ in range(repeats))
            print(f"{scenario['name']}: {rates[len(rates) // 2]:,.0f} request-steps/s (median of {repeats})")


if __name__ == "__main__":
    main()
