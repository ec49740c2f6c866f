"""A TCP proxy that delays, holds back, drops and cuts, on command.

It runs in a thread of this process, so a test steers it with plain calls.  "Requests" travel
from a client to the server, "replies" the other way; what is counted are the pieces as they
arrive, which is one for each command as long as a client waits for each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from localservers.ports import free_port

__all__ = ["Proxy"]

if TYPE_CHECKING:  # in the standard library from Python 3.11 on
    from typing_extensions import Self

T = TypeVar("T")


@dataclass
class _Direction:
    """What happens to the pieces that travel one way; touched only by the proxy's thread."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    delay: float = 0.0
    seen: int = 0
    drop: int = 0  # the number of the piece that is dropped; 0: none
    then_close: bool = False


class Proxy:
    """Stands between clients and one server.

    Args:
        url: the server's url with host and port; or give ``port`` alone.
        port: the server's port on 127.0.0.1.

    Attributes:
        port: where clients connect.
    """

    def __init__(self, url: str = "", *, port: int = 0) -> None:
        """Remember the server; nothing listens yet."""
        self._url = url
        self._target = port or urlsplit(url).port or 0
        if not self._target:
            raise ValueError("a proxy needs a url with a port, or a port")
        self.port = free_port()
        self._changed = threading.Condition()
        self._counts = {"requests": 0, "replies": 0}
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._ways: dict[str, _Direction] = {}

    @property
    def url(self) -> str:
        """The server's url, through the proxy."""
        parts = urlsplit(self._url)
        login, at, _ = parts.netloc.rpartition("@")
        host = parts.hostname or "127.0.0.1"
        return urlunsplit(parts._replace(netloc=f"{login}{at}{host}:{self.port}"))

    def start(self) -> Proxy:
        """Listen."""
        self._thread.start()
        self._ask(self._begin())
        return self

    @property
    def alive(self) -> bool:
        """Whether it has been started and not closed."""
        return self._thread.is_alive()

    def delay(self, seconds: float, *, requests: bool = False, replies: bool = True) -> None:
        """Let each piece of one or both ways travel ``seconds`` longer; 0: at once again."""
        self._set(
            requests=requests, replies=replies, change=lambda way: setattr(way, "delay", seconds)
        )

    def hold(self, *, requests: bool = True, replies: bool = True) -> None:
        """Let nothing through; what is sent meanwhile arrives late, at :meth:`heal`.

        Connections stay open and new ones are accepted: to a client the server hangs.  With
        one way only, requests are carried out and never answered, or never arrive.
        """
        self._set(requests=requests, replies=replies, change=lambda way: way.open.clear())

    def drop_reply(self, number: int = 1, *, then_close: bool = True) -> None:
        """Lose one reply on its way: the request was carried out, and the client never knows.

        Args:
            number: which one, counted from now on over all connections; 1: the next.
            then_close: break that connection; otherwise the client waits in vain.
        """
        self._drop("replies", number, then_close=then_close)

    def drop_request(self, number: int = 1, *, then_close: bool = True) -> None:
        """Lose one request on its way: nothing was carried out, and the client can't tell."""
        self._drop("requests", number, then_close=then_close)

    def cut(self) -> None:
        """Break all connections; new ones are accepted."""
        self._ask(self._cut())

    def refuse(self) -> None:
        """Break all connections and refuse new ones, until :meth:`heal`."""
        self._ask(self._stop_listening())

    def heal(self) -> None:
        """End every fault; what was held back arrives now."""
        self._ask(self._heal())

    def wait_for(self, *, requests: int = 0, replies: int = 0, timeout: float = 10.0) -> None:
        """Wait until that many pieces have arrived at the proxy, counted from its start.

        Raises:
            TimeoutError: they haven't after ``timeout`` seconds.
        """

        def arrived() -> bool:
            return self._counts["requests"] >= requests and self._counts["replies"] >= replies

        with self._changed:
            if not self._changed.wait_for(arrived, timeout):
                raise TimeoutError(f"the proxy has seen {self._counts} after {timeout:g} s")

    @property
    def requests(self) -> int:
        """How many requests have arrived at the proxy."""
        return self._counts["requests"]

    @property
    def replies(self) -> int:
        """How many replies have arrived at the proxy."""
        return self._counts["replies"]

    def close(self) -> None:
        """Break all connections and stop."""
        if self.alive:
            self._ask(self._stop_listening())
            self._ask(self._end_tasks())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        if not self.alive:
            self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # What follows the calls above, in the proxy's own thread.

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    def _set(
        self, *, requests: bool, replies: bool, change: Callable[[_Direction], object]
    ) -> None:
        async def apply() -> None:
            for name, wanted in (("requests", requests), ("replies", replies)):
                if wanted:
                    change(self._ways[name])

        self._ask(apply())

    def _drop(self, name: str, number: int, *, then_close: bool) -> None:
        async def apply() -> None:
            way = self._ways[name]
            way.drop, way.then_close = way.seen + number, then_close

        self._ask(apply())

    async def _begin(self) -> None:
        self._ways = {"requests": _Direction(), "replies": _Direction()}
        await self._heal()

    async def _heal(self) -> None:
        for way in self._ways.values():
            way.delay, way.drop = 0.0, 0
            way.open.set()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        await self._cut()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut(self) -> None:
        for _ in range(10):  # turns of the loop: who has knocked before is let in, and then cut
            await asyncio.sleep(0)
        for writer in self._links:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(writer)
        try:
            with contextlib.suppress(OSError):
                await self._join(reader, writer)
        finally:
            writer.transport.abort()
            self._links.discard(writer)
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._links.add(far_writer)
        there = asyncio.ensure_future(self._pump("requests", reader, far_writer))
        back = asyncio.ensure_future(self._pump("replies", far_reader, writer))
        try:
            # One side that is gone ends both: what the other says would reach nobody.
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in (there, back):
                pump.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            far_writer.transport.abort()
            self._links.discard(far_writer)

    async def _pump(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        way = self._ways[name]
        while piece := await reader.read(65536):
            way.seen += 1
            lost = way.seen == way.drop
            self._count(name)
            if lost and way.then_close:
                return
            if way.delay:
                await asyncio.sleep(way.delay)
            await way.open.wait()
            if not lost:
                writer.write(piece)
                await writer.drain()

    def _count(self, name: str) -> None:
        with self._changed:
            self._counts[name] += 1
            self._changed.notify_all()
