"""The container: its hardening, its cgroup, its image."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio

from tools.sandbox import Status, make_sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(engine_client):
    async with make_sandbox("docker", workers=2) as made:
        yield made


async def test_the_container_is_hardened(engine_client, own_containers, sandbox):
    (found,) = own_containers()
    host = found["HostConfig"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["Privileged"]) == (
        "none",
        True,
        False,
    )
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    (shown,) = found["Mounts"]  # the folder of the control socket
    assert (shown["Type"], shown["Destination"], shown["RW"]) == ("bind", "/handover", False)
    assert not Path(shown["Source"]).exists()
    assert host["LogConfig"]["Type"] == "none"
    machine = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert host["Memory"] == host["MemorySwap"]
    assert host["Memory"] == pytest.approx(0.75 * machine, rel=0.01)
    assert host["PidsLimit"] == 512 * 17
    used = engine_client.stats(found["Id"], stream=False)["memory_stats"]
    assert used["limit"] == host["Memory"]  # the cgroup's limit
    assert 0 < used["usage"] < 256 << 20


async def test_even_the_trusted_part_has_no_rights(engine_client, own_containers, sandbox):
    (found,) = own_containers()
    status = Path(f"/proc/{found['State']['Pid']}/status")
    if not status.exists():
        pytest.skip("the engine's processes cannot be seen from here")
    fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
    assert {fields[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert min(map(int, fields["Uid"].split())) >= 20_000


async def test_a_program_sees_the_image_and_nothing_of_this_machine(sandbox):
    result = await sandbox.run(
        "import os\nprint(sorted(os.listdir('/')))\n"
        "print(os.listdir('/sys') + [os.path.exists('/handover/host')])\n"
        "print(sorted(os.listdir('/etc')))\nprint(open('/etc/resolv.conf').read().split())\n"
        "print(open('/etc/hostname').read())"
    )
    root, empty, settings, resolver, name = result.stdout.splitlines()[:5]
    assert "'home'" not in root and "'var'" not in root
    assert empty == "[False]"
    assert "passwd" not in settings
    assert resolver == "['nameserver', '127.0.0.1']"
    assert name == "sandbox"


async def test_commands_and_time_zones_are_in_the_image(sandbox):
    result = await sandbox.run(
        "import os, subprocess, zoneinfo\nos.system('echo from a shell')\n"
        "print(subprocess.run(['ls', '/proc/self/cwd'], capture_output=True, text=True))\n"
        "zoneinfo.ZoneInfo('Europe/Berlin')",
        files={"mine": ""},
    )
    assert result.status is Status.OK, result
    assert "from a shell" in result.stdout
    assert "stdout='mine\\n'" in result.stdout
