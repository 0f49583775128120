"""The canary: a program that tries forbidden actions.

A sandbox runs it once before its first job.
"""

from __future__ import annotations

CANARY = """
import os, socket

def denied(act):
    try:
        act()
    except OSError:
        return True
    return False

def write_outside():
    with open(os.path.join(os.sep, "canary"), "w") as file:
        file.write("x")

for name, held in (
    ("reading /etc/passwd", denied(lambda: open("/etc/passwd"))),
    ("listing /var", denied(lambda: os.listdir("/var"))),
    ("writing outside its folder", denied(write_outside)),
    ("opening a socket", denied(socket.socket)),
    ("signalling process 1", os.getpid() < 4 or denied(lambda: os.kill(1, 0))),
):
    if not held:
        print(name)
with open("own", "w") as file:
    file.write("mine")
print(open("own").read())
"""

EXPECTED = "mine\n"
