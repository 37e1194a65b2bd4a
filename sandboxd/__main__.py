"""`python -m sandboxd` is the command line."""

from __future__ import annotations

import sys

from sandboxd.cli import main

sys.exit(main())
