"""``python -m envs list|info|check|new``."""

import sys

from envs.name_clash import foreign

# With an editable install this file is found even where a folder envs/ of the user's comes first.
if told := foreign("envs"):
    sys.exit(f"error: {told}")

from envs.command.main import main

sys.exit(main())
