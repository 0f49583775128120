"""``python -m envs list|info|check|new``."""

import sys

from envs.command.main import main

sys.exit(main())
