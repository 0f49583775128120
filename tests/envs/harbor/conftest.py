"""Tasks and a Docker engine for tests of ``harbor-v0``."""

from __future__ import annotations

import os
from pathlib import Path

import backends
import host_image
import pytest

from tools.sandbox import SandboxUnavailable
from tools.sandbox.backends.docker import container, engine

TASKS = Path(__file__).with_name("tasks")


@pytest.fixture
def tasks() -> Path:
    """Folder of three tasks."""
    return TASKS


@pytest.fixture(scope="session")
def docker_client():
    """A client of the engine, which has the tasks' base image; missing without an engine."""
    try:
        client = engine.connect()
    except SandboxUnavailable as error:
        backends.missing("docker", str(error))
    host_image.ensure(client)
    yield client
    client.close()


@pytest.fixture
def containers(docker_client):
    """Function that lists the ids of this process's containers."""
    label = f"{container.OWNER_LABEL}={container.owner(os.getpid())}"

    def listed() -> list[str]:
        return [one["Id"] for one in docker_client.containers(all=True, filters={"label": label})]

    return listed
