"""The command ``python -m envs list|info|check|new``."""

import sys

from envs.base.name_clash import describe_clash

# An editable install finds this file even if a user's folder envs/ comes first.
if clash := describe_clash("envs"):
    sys.exit(f"error: {clash}")

from envs.command.main import main

sys.exit(main())
