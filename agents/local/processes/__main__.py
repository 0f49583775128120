"""A sampling process: ``python -m agents.local.processes SOCKET MEMORY``, two file descriptors."""

from __future__ import annotations

import sys

from agents.local.processes.server import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
