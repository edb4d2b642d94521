"""``python -m app.jobs.solver``: the solver process, see `app.jobs.solver.main` for its arguments.

The process is tied to its worker before anything else is imported, because imports take a second, and a
worker that ends in that second would leave the process behind.
"""

import sys

from app.processes.os_process import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    from app.jobs.solver.main import main

    sys.exit(main())
