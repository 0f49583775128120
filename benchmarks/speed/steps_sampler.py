"""A sampling process of ``benchmarks.speed.steps_ours``, which follows the script as well."""

from __future__ import annotations

import os
import sys

from transformers import AutoTokenizer

from agents.local.processes.server import serve
from benchmarks.speed.steps_ours import MODEL, WORKLOAD, follow_script
from benchmarks.speed.workloads import WORKLOADS

if __name__ == "__main__":
    follow_script(WORKLOADS[os.environ[WORKLOAD]], AutoTokenizer.from_pretrained(os.environ[MODEL]))
    serve(int(sys.argv[1]), int(sys.argv[2]))
