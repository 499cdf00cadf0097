"""What a frame costs: starts the server, loads it from another process, weighs it through /proc, prints a table.

    python benchmarks/bench.py [--quick] [--only NAME,...] [--repeat N] [--json FILE] [--profile FILE]
                               [--against CMD] [-- OPTIONS OF OUR SERVER]

Run it from the project's root, with nothing else on the machine. `--against` runs a peer's server the same way, the two
interleaved, and prints ratios ours / theirs. `{port}` in CMD is a free port, `{fixtures}` a file that tells aimock
what to answer: `--against 'npx llmock -f {fixtures} -p {port} --log-level silent --journal-max 0'`. A peer tells the
scenarios apart by the last message, `frames=N delay=MS`. `--against '../old/.venv/bin/inference-lab serve {options}'`
is another version of this server, which is given the options that ours has, in every scenario.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from loadgen import LoadGenerator, scratch
from report import against_recorded, cost_of_the_journal, print_profile, print_table
from scenarios import SCENARIOS, Ours, Peer, Scenario, Sibling, Subject, fixtures, stalled, start_s


def main() -> None:
    """Run the scenarios asked for."""
    ours_options: list[str] = []
    arguments = sys.argv[1:]
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, ours_options = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer scenarios, a second each")
    parser.add_argument("--only", help="names of scenarios, separated by commas")
    parser.add_argument("--repeat", type=int, default=1, help="runs per scenario; the median is printed")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured, - for stdout")
    parser.add_argument(
        "--profile", metavar="FILE", help="write where our server's time goes, and measure nothing"
    )
    parser.add_argument("--against", metavar="CMD", help="a peer's server")
    options = parser.parse_args(arguments)
    chosen = [
        scenario
        for scenario in SCENARIOS
        if (scenario.name in options.only.split(",") if options.only else scenario.quick or not options.quick)
    ]
    if not chosen:
        parser.error("no such scenario; there are: " + ", ".join(scenario.name for scenario in SCENARIOS))
    with scratch() as name:
        folder = Path(name)
        generator = LoadGenerator(folder)
        ours = Ours(folder, ours_options)
        if options.profile:
            with Path(options.profile).open("w") as file:
                for scenario in chosen:
                    print_profile(scenario, *ours.profile(generator, scenario), file)
            return
        subjects: list[Subject] = [ours]
        if options.against:
            (folder / "fixtures.json").write_text(fixtures(chosen))
            subjects.append(
                Sibling(options.against, ours)
                if "{options}" in options.against
                else Peer(options.against, folder / "fixtures.json")
            )
        rows = [run(generator, scenario, subjects, options) for scenario in chosen]
    print_table(rows)
    if not options.against:
        against_recorded(rows)
        cost_of_the_journal(rows)
    if options.json:
        everything = {
            "machine": machine(),
            "ours": ours_options,
            "against": options.against,
            "scenarios": rows,
        }
        text = json.dumps(everything, indent=2) + "\n"
        sys.stdout.write(text) if options.json == "-" else Path(options.json).write_text(text)


def run(
    generator: LoadGenerator, scenario: Scenario, subjects: list[Subject], options: argparse.Namespace
) -> dict[str, Any]:
    """Measure one scenario on each subject in turn, as often as asked; medians of every figure."""
    measured: dict[str, list[dict[str, Any]]] = {subject.name: [] for subject in subjects}
    for _ in range(options.repeat):
        for subject in subjects:
            if scenario.tls and not generator.has_tls:
                continue
            if subject.can(scenario):
                print(f"{scenario.name}: {subject.name} …", file=sys.stderr, flush=True)
                measured[subject.name].append(measure(generator, scenario, subject, quick=options.quick))
    return {
        "scenario": scenario.name,
        **{name: median(runs) for name, runs in measured.items() if runs},
    }


def measure(generator: LoadGenerator, scenario: Scenario, subject: Subject, *, quick: bool) -> dict[str, Any]:
    """One run."""
    if scenario.kind == "start":
        return {"start_s": start_s(subject, 3 if quick else 7)}
    with subject.start(scenario) as child:
        if scenario.kind == "stalled":
            return stalled(generator, child, scenario)
        return generator.run(child.port, scenario.load(quick=quick), child.pids())


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, figures inside figures included."""
    return {
        name: median([run[name] for run in runs])
        if isinstance(value, dict)
        else statistics.median(run[name] for run in runs)
        for name, value in runs[0].items()
    }


def machine() -> dict[str, Any]:
    """Where it was measured, and how busy that was."""
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
    }


if __name__ == "__main__":
    main()
