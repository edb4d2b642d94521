"""``python -m docs.site``: build the site in build/docs/site; exit code 1 with what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from docs.site.checks import missing, outside
from docs.site.stage import ROOT, stage


def build(folder: Path) -> tuple[Path, list[str]]:
    """Build the site below ``folder``; returns it and what is wrong with it, one fault a line."""
    config = stage(folder)
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [program, "build", "--strict", "--clean", "--config-file", config],
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    site = folder / "site"
    faults = [done.stdout + done.stderr] if done.returncode else []
    faults += [f"{path.relative_to(site)} loads {address}" for path, address in outside(site)]
    faults += [f"{path.relative_to(site)} links to {address}" for path, address in missing(site)]
    return site, faults


def main() -> None:
    """Build the site, and say where it is or what is wrong."""
    site, faults = build(ROOT / "build" / "docs")
    if faults:
        sys.exit("\n".join(faults))
    print(f"The documentation: {site / 'index.html'}")


if __name__ == "__main__":
    main()
