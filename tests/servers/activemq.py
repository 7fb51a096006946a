"""ActiveMQ Classic for the tests, from the Debian package, which is installed where that is allowed.

Each broker has its own folder and a free port of the loopback interface. A second broker on the folder of a first one
waits for the lock of its data, and takes over when the first one ends.
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
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from stagepost.testing.postgres import ServerUnavailableError
from tests.servers.ports import reserved_port
from tests.servers.postgres import ensure_installed
from tests.waiting import PATIENCE_SECONDS, wait_until

PACKAGE = "activemq"
HOME = Path("/usr/share/activemq")
USER, PASSWORD = "tester", "s3cret:\\ü"
# This user may write to these queues alone.
LIMITED = "limited"
WRITABLE = ("contract.*", "contract.*.other", "contract.*.nowhere", "_store.>", "_dead.>", "Consumer.>")
STORE_PASSWORD = "changeit"
FRAME_BYTES_MAX = 10 * 1024 * 1024
PROBE_SECONDS = 5.0

# Nagle's algorithm beside delayed acknowledgements would make a stage a hundred times slower. A full broker answers
# with an error after three seconds, where it would stop reading by default.
CONFIGURATION = """\
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
 xsi:schemaLocation="http://www.springframework.org/schema/beans
 http://www.springframework.org/schema/beans/spring-beans-2.0.xsd http://activemq.apache.org/schema/core
 http://activemq.apache.org/schema/core/activemq-core.xsd">
 <broker xmlns="http://activemq.apache.org/schema/core" brokerName="tests" useJmx="false" dataDirectory="{data}"
  persistent="true" schedulerSupport="false">
  <plugins>
   <simpleAuthenticationPlugin>
    <users>
     <authenticationUser username="{user}" password="{password}" groups="all"/>
     <authenticationUser username="{limited}" password="{password}" groups="some"/>
    </users>
   </simpleAuthenticationPlugin>
   <authorizationPlugin><map><authorizationMap><authorizationEntries>
    <authorizationEntry queue="&gt;" read="all,some" write="all" admin="all,some"/>
    <authorizationEntry topic="&gt;" read="all,some" write="all,some" admin="all,some"/>
{writable}
   </authorizationEntries></authorizationMap></map></authorizationPlugin>
  </plugins>
  <persistenceAdapter>
   <kahaDB directory="{data}/kahadb" journalDiskSyncStrategy="always" journalMaxFileLength="{journal_bytes}"
    cleanupInterval="{cleanup_milliseconds}"/>
  </persistenceAdapter>
  <systemUsage><systemUsage sendFailIfNoSpaceAfterTimeout="3000">
   <memoryUsage><memoryUsage limit="64 mb"/></memoryUsage>
   <storeUsage><storeUsage limit="{store_bytes}"/></storeUsage>
   <tempUsage><tempUsage limit="64 mb"/></tempUsage>
  </systemUsage></systemUsage>
  <transportConnectors>
   <transportConnector name="stomp"
    uri="stomp://127.0.0.1:{port}?transport.tcpNoDelay=true&amp;wireFormat.maxFrameSize={frame_bytes}"/>
   <transportConnector name="delayed" uri="stomp://127.0.0.1:{delayed_port}"/>{connectors}
  </transportConnectors>
 </broker>
</beans>
"""
OPTIONS = (
    "-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "--add-opens", "java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/java.util=ALL-UNNAMED",
)  # fmt: skip


class ActiveMQServer:
    """A broker in ``folder``, whose data lie in ``data``. They stay there when it is killed."""

    def __init__(
        self,
        folder: Path,
        *,
        data: Path | None = None,
        store_bytes: int = 1 << 30,
        journal_bytes: int = 8 << 20,
        cleanup_milliseconds: int = 30_000,
        has_tls: bool = False,
    ) -> None:
        self.port = reserved_port()
        self.data = data or folder / "data"
        self._folder = folder
        self._tls_port = reserved_port()
        # A connector with Nagle's algorithm.
        self.delayed_port = reserved_port()
        self._has_tls = has_tls
        self._process: subprocess.Popen[bytes] | None = None
        tls = f'\n   <transportConnector name="tls" uri="stomp+ssl://127.0.0.1:{self._tls_port}"/>'
        for each in ("conf", "tmp"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        (folder / "conf" / "activemq.xml").write_text(
            CONFIGURATION.format(
                data=self.data,
                user=USER,
                password=PASSWORD,
                limited=LIMITED,
                writable="\n".join(
                    f'    <authorizationEntry queue="{escape(each)}" read="some" write="some" admin="some"/>'
                    for each in WRITABLE
                ),
                store_bytes=store_bytes,
                journal_bytes=journal_bytes,
                cleanup_milliseconds=cleanup_milliseconds,
                port=self.port,
                delayed_port=self.delayed_port,
                frame_bytes=FRAME_BYTES_MAX,
                connectors=tls if has_tls else "",
            ),
            encoding="utf-8",
        )
        (folder / "conf" / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, file\nlog4j.appender.file=org.apache.log4j.FileAppender\n"
            f"log4j.appender.file.file={folder}/log\nlog4j.appender.file.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.file.layout.ConversionPattern=%d %p %m%n\n",
            encoding="utf-8",
        )

    @property
    def configuration(self) -> Path:
        return self._folder / "conf" / "activemq.xml"

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, parameters: str = "", *, place: str = "", user: str = USER) -> str:
        """Return the broker's URL; ``place`` leads to it by another way."""
        return f"stomp://{user}:{quote(PASSWORD, safe='')}@{place or self.place}{parameters and '?' + parameters}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def tls_url(self) -> str:
        """Return the URL over TLS, which names the broker's own certificate as trusted."""
        certificate = quote(str(self._folder / "broker.pem"), safe="/")
        return f"stomp+ssl://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{self._tls_port}?cafile={certificate}"

    def launch(self) -> None:
        """Start the process, and do not wait until it answers."""
        options = self._make_certificate() if self._has_tls else ()
        command = [
            "java", *OPTIONS, *options, f"-Dactivemq.classpath={self._folder}/conf:",
            f"-Dactivemq.home={HOME}", f"-Dactivemq.base={self._folder}", f"-Dactivemq.conf={self._folder}/conf",
            f"-Dactivemq.data={self._folder}/data", f"-Djava.io.tmpdir={self._folder}/tmp",
            "-jar", str(HOME / "bin" / "activemq.jar"), "start", f"xbean:file:{self._folder}/conf/activemq.xml",
        ]  # fmt: skip
        with (self._folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self._folder, start_new_session=True
            )

    def start(self) -> None:
        self.launch()
        wait_until(self.answers, "ActiveMQ answers CONNECT")

    def kill(self) -> None:
        assert self._process is not None
        # A suspended process dies of this signal too.
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def restart(self) -> None:
        """Kill the broker, and start it with its data."""
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the broker during the block."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            # Its threads stop one after the other.
            wait_until(self._stands_still, "all threads of ActiveMQ stand still")
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def _make_certificate(self) -> tuple[str, ...]:
        """Make a key and a certificate. Returns Java's options for them."""
        store, certificate = self._folder / "broker.p12", self._folder / "broker.pem"
        opening = ("-keystore", str(store), "-storepass", STORE_PASSWORD, "-alias", "broker")
        if not certificate.exists():
            name = ("-dname", "CN=127.0.0.1", "-ext", "SAN=IP:127.0.0.1", "-validity", "3650")
            for command in (
                ("-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", *name),
                ("-exportcert", "-rfc", "-file", str(certificate)),
            ):
                subprocess.run(["keytool", command[0], *opening, *command[1:]], check=True, capture_output=True)
        java = "-Djavax.net.ssl.keyStore"
        return (f"{java}={store}", f"{java}Password={STORE_PASSWORD}", f"{java}Type=PKCS12")

    def _stands_still(self) -> bool:
        states = set()
        for each in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            # The thread may have ended since the listing.
            with suppress(OSError):
                states.add(each.read_text(encoding="utf-8").rpartition(")")[2].split()[0])
        return states == {"T"}

    def answers(self) -> bool:
        """Say whether the broker answers CONNECT. An open port is not enough, and resets its first connections."""
        assert self._process is not None
        if self._process.poll() is not None:
            out = (self._folder / "out").read_text(errors="replace")
            raise ServerUnavailableError(f"ActiveMQ ended: {out[-500:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=PROBE_SECONDS) as probe:
                probe.sendall(f"CONNECT\naccept-version:1.2\nlogin:{USER}\npasscode:{PASSWORD}\n\n\0".encode())
                return probe.recv(9) == b"CONNECTED"
        except OSError:
            return False


def check_installed() -> None:
    """Raises ``ServerUnavailableError``."""
    if not (HOME / "bin" / "activemq.jar").exists():
        raise ServerUnavailableError("ActiveMQ is not installed: install the package activemq")
    if shutil.which("java") is None:
        raise ServerUnavailableError("there is no java: install the package default-jre-headless")


@contextmanager
def running_activemq(folder: Path, **settings: Any) -> Iterator[ActiveMQServer]:
    """Raises ``ServerUnavailableError``."""
    ensure_installed(check_installed, PACKAGE)
    server = ActiveMQServer(folder, **settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
