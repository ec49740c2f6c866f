"""Several servers that are started together and stopped together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from localservers.process import Server

if TYPE_CHECKING:  # in the standard library from Python 3.11 on
    from typing_extensions import Self

__all__ = ["Cluster"]

S = TypeVar("S", bound=Server)


class Cluster(Generic[S]):
    """Servers that belong together.

    Args:
        servers: the members; not started yet.
    """

    def __init__(self, servers: Sequence[S]) -> None:
        """Keep the members."""
        self.servers = list(servers)

    @property
    def urls(self) -> list[str]:
        """The url of each member, in order."""
        return [server.url for server in self.servers]

    def start(self, timeout: float = 60.0) -> Self:
        """Start all at once and wait until each is ready.

        Raises:
            ServerFailed: one of them ended, or isn't ready in time.
        """
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_until_ready(timeout)
        return self

    def close(self) -> None:
        """Stop all and remove their folders."""
        for server in self.servers:
            server.kill()  # nothing is worth keeping, so nobody needs to say good-bye
            server.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[S]:
        return iter(self.servers)

    def __len__(self) -> int:
        return len(self.servers)

    def __getitem__(self, index: int) -> S:
        return self.servers[index]
