"""A RabbitMQ server, and the Erlang port mapper that it needs."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from localservers.ports import free_port
from localservers.process import Process, Server

__all__ = ["RabbitMQ"]

_CURE = "install the Debian package rabbitmq-server"
_USER = "rabbitmq"


class _PortMapper(Process):
    """epmd in the foreground: one that the server starts itself would outlive it."""

    def __init__(self, port: int) -> None:
        super().__init__(
            [Server.find("epmd", _CURE), "-address", "127.0.0.1", "-port", str(port)],
            name="epmd",
            user=_USER,
        )
        self.port = port

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 2.0).close()
            return True
        return False


class RabbitMQ(Server):
    """One server with the user ``guest``.  As root it runs as the user ``rabbitmq``."""

    def __init__(self) -> None:
        """Choose the program and the ports; nothing is started yet."""
        self.program = self.find("rabbitmq-server", _CURE, ["/usr/lib/rabbitmq/bin"])
        inner = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one on PATH only switches the user
        if os.path.lexists(inner):
            self.program = inner
        super().__init__(name="rabbitmq", user=_USER)
        self.port = free_port()
        self._mapper = _PortMapper(free_port())
        self._settings()

    @property
    def url(self) -> str:
        """How clients reach it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def _settings(self) -> None:
        plugins, settings = self.folder / "enabled_plugins", self.folder / "rabbitmq.conf"
        plugins.write_text("[].\n")
        settings.write_text("log.console = true\nlog.console.level = warning\nlog.file = false\n")
        for path in (plugins, settings):
            path.chmod(0o644)
        self.environment |= {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"ls{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "no-such-file"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._mapper.port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def launch(self) -> None:
        """Start the port mapper, then the server, and don't wait."""
        if not self._mapper.alive:
            self._mapper.start()
        super().launch()

    def command(self) -> Sequence[str]:
        """The start line."""
        return [self.program]

    def ready(self) -> bool:
        """Whether it answers the protocol header with a method frame (Connection.Start)."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 2.0) as connection,
        ):
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
        return False

    def stop(self, timeout: float = 15.0) -> None:
        """Stop the server, then the port mapper."""
        super().stop(timeout)
        self._mapper.stop()

    def close(self) -> None:
        """Stop both and remove their folders."""
        super().close()
        self._mapper.close()
