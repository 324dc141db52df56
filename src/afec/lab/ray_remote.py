"""What is sent to the nodes of a Ray cluster as it is: a node with another version of this package, or none, says so."""

from __future__ import annotations

from typing import Any

__all__ = ["remote_parts"]


def remote_parts(ray: Any) -> tuple[Any, Any]:
    """What runs on nodes. Defined in here, they are sent as they are: a node without this package can run them, and say so."""

    def visit(name: str, expected: dict[str, str], *arguments: Any) -> tuple[str, Any]:
        import importlib
        import platform
        from importlib import metadata

        def versions_of(found: dict[str, str]) -> str:
            return ", ".join(f"{key} {value}" for key, value in found.items())

        def refused(found: str) -> tuple[str, Any]:
            wanted = versions_of(expected)
            text = f"has {found}, and this command has {wanted}; install the same versions on every node"
            if name == "inspect":
                return "refused", text
            node = ray.get_runtime_context().get_node_id()
            return "refused", (node, f"{platform.node()} ({node[:8]}) {text}")

        import ray

        try:
            there = importlib.import_module("afec.lab.ray_node")
        except ImportError as error:
            try:
                return refused(f"afec {metadata.version('afec')} ({error})")
            except metadata.PackageNotFoundError:
                return refused("no afec")
        found = there.versions()
        if found != expected:
            return refused(versions_of(found))
        return "done", getattr(there, name)(*arguments)

    class Mailbox:
        """Messages of the work, on their way to the driver, and whether to stop."""

        def __init__(self) -> None:
            import asyncio

            self.letters: list[Any] = []
            self.asked_to_stop = False
            self.event = asyncio.Event()

        async def put(self, attempt: str, kind: str, content: Any) -> None:
            self.letters.append((attempt, kind, content))
            self.event.set()

        async def take(self) -> list[Any]:
            await self.event.wait()
            self.event.clear()
            letters, self.letters = self.letters, []
            return letters

        async def stopping(self) -> bool:
            return self.asked_to_stop

        async def stop(self) -> None:
            self.asked_to_stop = True

    return ray.remote(visit), ray.remote(Mailbox)
