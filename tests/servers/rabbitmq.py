"""A RabbitMQ server for the tests, from the Debian package, which is installed where that is allowed.

It has its own folder, its own ports on the loopback interface, and its own port mapper. It is started and ended by the
ids of its processes, and no other server of the machine notices.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from stagepost.testing.postgres import ServerUnavailableError
from tests.servers.ports import reserved_port
from tests.servers.postgres import ensure_installed
from tests.waiting import PATIENCE_SECONDS, wait_until

PACKAGE = "rabbitmq-server"
BINARIES = Path("/usr/lib/rabbitmq/bin")
# A larger body is refused.
BODY_BYTES_MAX = 4_000_000
# Two cores are shared by all tests; a scheduler that waits busily takes them from the others.
ERLANG = "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"


class RabbitServer:
    """A server in ``folder``. Its data stays there when it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = reserved_port()
        self.tls_port = reserved_port()
        self._epmd_port = reserved_port()
        self._management_port = 0
        self._name = f"t{self.port}@localhost"
        self._environment = os.environ | {
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(reserved_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
        }
        self.certificate = folder / "certificate.pem"
        (folder / "home").mkdir(parents=True)
        self._certify()
        (folder / "enabled_plugins").write_text("[].")
        self._configure()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, parameters: str = "", host: str = "") -> str:
        """Return the server's URL. ``host`` is a virtual host that was added."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{host}{parameters and '?' + parameters}"

    def add_host(self) -> str:
        """Add a virtual host, whose addresses no other test has marked."""
        name = uuid4().hex
        self.control("add_vhost", name)
        self.control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        return name

    def tls_url(self, parameters: str = "") -> str:
        return f"amqps://guest:guest@localhost:{self.tls_port}/{parameters and '?' + parameters}"

    def start(self, port: int | None = None) -> None:
        """Start the server, with its data. ``port`` is another port than before."""
        if port is not None:
            self.port = port
            self._environment["RABBITMQ_NODE_PORT"] = str(port)
            self._configure()
        with (self._folder / "out").open("ab") as out:
            # The server itself, and not the script that changes the user. It is the leader of a session of its own.
            self._process = subprocess.Popen(
                [str(BINARIES / PACKAGE)], env=self._environment, stdout=out, stderr=out, start_new_session=True
            )
        wait_until(self._answers, "RabbitMQ answers")
        self.control("await_startup")

    def kill(self) -> None:
        assert self._process is not None
        # A suspended process dies of this signal too.
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_SECONDS)

    def restart(self) -> None:
        """Kill the server, and start it with its data."""
        self.kill()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the server during the block."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        for each in self._port_mappers():
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return int((self._folder / "pid").read_text())

    def control(self, *arguments: str) -> str:
        """Run ``rabbitmqctl``."""
        command = [str(BINARIES / "rabbitmqctl"), "-q", "-n", self._name, *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        if done.returncode:
            raise ServerUnavailableError(f"rabbitmqctl {arguments[0]} failed: {done.stderr.strip()[-500:]}")
        return done.stdout

    def enable_management(self) -> str:
        """Enable the plugin on a port of its own. Return the URL of its API."""
        if not self._management_port:
            self._management_port = reserved_port()
            config = f'[{{port, {self._management_port}}}, {{ip, "127.0.0.1"}}]'
            self.control(
                "eval",
                "application:load(rabbitmq_management), "
                f"application:set_env(rabbitmq_management, tcp_config, {config}).",
            )
            command = [str(BINARIES / "rabbitmq-plugins"), "-q", "-n", self._name, "enable", "rabbitmq_management"]
            subprocess.run(command, env=self._environment, capture_output=True, check=True, timeout=PATIENCE_SECONDS)
        return f"http://127.0.0.1:{self._management_port}"

    def cut_connections(self) -> None:
        self.control("close_all_connections", "the test")

    @contextmanager
    def in_alarm(self) -> Iterator[None]:
        """Let the server lack memory during the block."""
        # The second call is answered after the first one took effect: every connection has been told.
        self.control(
            "eval", "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}), rabbit_alarm:get_alarms()."
        )
        try:
            yield
        finally:
            self.control("eval", "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")

    @property
    def log(self) -> str:
        return "\n".join(each.read_text(errors="replace") for each in (self._folder / "log").glob("*.log"))

    def _configure(self) -> None:
        settings = (
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "vm_memory_high_watermark.absolute = 400MB\n"
            "disk_free_limit.absolute = 50MB\n"
            f"max_message_size = {BODY_BYTES_MAX}\n"
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.certfile = {self.certificate}\n"
            f"ssl_options.keyfile = {self._key}\n"
        )
        (self._folder / "rabbitmq.conf").write_text(settings)

    @property
    def _key(self) -> Path:
        return self._folder / "key.pem"

    def _certify(self) -> None:
        """Make a certificate of localhost that is its own authority."""
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
        command += ["-keyout", str(self._key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)

    def _answers(self) -> bool:
        """Say whether the server speaks AMQP. An open port is not enough."""
        assert self._process is not None
        if self._process.poll() is not None:
            out = (self._folder / "out").read_text(errors="replace")
            raise ServerUnavailableError(f"RabbitMQ ended: {out[-500:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as probe:
                probe.sendall(b"AMQP\0\0\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False

    def _port_mappers(self) -> list[int]:
        """Return the processes of this server's port mapper, which outlives the server."""
        wanted = f"ERL_EPMD_PORT={self._epmd_port}".encode()
        found = []
        for each in Path("/proc").glob("[0-9]*/comm"):
            # The process may have ended since the listing.
            with suppress(OSError):
                if each.read_text().strip() == "epmd" and wanted in (each.parent / "environ").read_bytes().split(b"\0"):
                    found.append(int(each.parent.name))
        return found


def found() -> Path:
    """Raises ``ServerUnavailableError``."""
    if not (BINARIES / PACKAGE).exists():
        raise ServerUnavailableError(f"RabbitMQ is not installed: install the package {PACKAGE}")
    return BINARIES


@contextmanager
def running_rabbitmq(folder: Path) -> Iterator[RabbitServer]:
    """Raises ``ServerUnavailableError``."""
    ensure_installed(found, PACKAGE)
    if shutil.which("erl") is None:
        raise ServerUnavailableError("Erlang is not installed: install the package erlang-base")
    server = RabbitServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
