"""Workspaces in Docker containers: images, containers, and commands in them."""

from tools.workspace.docker.container import Container, ContainerSpec
from tools.workspace.docker.engine import Engine, EngineError
from tools.workspace.docker.images import BuildFailed, ImageBuilder, pack
from tools.workspace.docker.workspace import NO_TIME, DockerWorkspace

__all__ = [
    "NO_TIME",
    "BuildFailed",
    "Container",
    "ContainerSpec",
    "DockerWorkspace",
    "Engine",
    "EngineError",
    "ImageBuilder",
    "pack",
]
