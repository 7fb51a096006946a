"""The server is killed, stops at once, or has no room left, while workers work; and comes back."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest
from psycopg import sql

from stagepost.flow.clock import SECOND, SystemClock
from stagepost.runtime.databases import open_store
from stagepost.testing.postgres import account_for_the_server
from stagepost.transaction.queue_commit import committing
from stagepost.transaction.steps import Step
from tests.campaigns import Tell
from tests.faults.books import Books, Flow, chores, transfers
from tests.faults.campaign import get_on, replenish
from tests.faults.disks import full, mounted
from tests.faults.postgres_books import PostgresBooks
from tests.faults.scenarios import settle, struck_at_a_step
from tests.faults.worker_fleet import PROCESS, Member, WorkerFleet
from tests.processes import kill
from tests.servers.plugin import Pooled
from tests.servers.postgres import OwnServer
from tests.servers.stalling import without_writers
from tests.waiting import LOOK_SECONDS, STANDSTILL_SECONDS, wait_until

Blow = Callable[[OwnServer], None]


def killed(server: OwnServer) -> None:
    server.kill()
    server.start()


def stopped_at_once(server: OwnServer) -> None:
    server.stop("immediate")
    server.start()


@pytest.fixture
def store() -> str:
    return "postgres"


@pytest.fixture
def books(mortal_postgres: OwnServer) -> Iterator[PostgresBooks]:
    """On the server that is killed."""
    url = mortal_postgres.new_database()
    books = PostgresBooks(url)
    yield books
    books.close()
    mortal_postgres.drop_database(url)


@pytest.mark.parametrize(
    ("blow", "step"),
    [
        # The handler has written, and the commit is the next that is said.
        (killed, Step.HANDLED),
        (stopped_at_once, Step.COMMITTING),
        *(
            pytest.param(blow, step, marks=pytest.mark.more)
            for blow, step in (
                (killed, Step.CLAIMED),
                (stopped_at_once, Step.HANDLED),
                (killed, Step.COMMITTING),
                (killed, Step.COMMITTED),
            )
        ),
        *(
            pytest.param(blow, step, marks=pytest.mark.soak)
            for blow in (killed, stopped_at_once)
            for step in (Step.BEGUN, Step.ADMITTED, Step.RECORDED, Step.AFTER_COMMIT)
        ),
    ],
)
def test_a_server_that_is_gone_for_a_moment_at_a_step_of_a_stage_loses_and_doubles_nothing(
    blow: Blow, step: Step, books: PostgresBooks, mortal_postgres: OwnServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    assert struck_at_a_step(books, fleet, tmp_path, step, lambda: during(books, mortal_postgres, blow)) == []


def during(books: PostgresBooks, server: OwnServer, blow: Blow) -> None:
    books.close()
    blow(server)


@pytest.mark.more
@pytest.mark.parametrize("blow", [killed, pytest.param(stopped_at_once, marks=pytest.mark.soak)])
def test_a_server_that_is_killed_over_and_over_while_workers_work_loses_and_doubles_nothing(
    blow: Blow, books: PostgresBooks, mortal_postgres: OwnServer, fleet: WorkerFleet
) -> None:
    deadly = Flow("deadly", fault="bank.fraud:late-sigkill", dies_at="bank.fraud")
    flows = [*transfers(60, "slow=0.01"), deadly, *transfers(60, "slow=0.01", name="u")]
    books.start(flows)
    worker = fleet.command("--processes", "2", "--threads", "2", tune="death=0.1")
    for _ in range(4):
        get_on(books, 60)
        during(books, mortal_postgres, blow)
    settle(books)
    assert worker.is_running()
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert {each.split()[1] for each in books.blamed("died")} <= suspected_with("deadly", books)
    assert [(flow, reason, deaths) for flow, _, reason, _, deaths in books.letters()] == [("deadly", "worker-died", 4)]


def suspected_with(deadly: str, books: Books) -> set[str]:
    """Who ran in the same process when it died for the first time, and the one itself."""
    assert deadly in {each.split()[1] for each in books.blamed("died")}
    found = books.rows(
        "SELECT DISTINCT flow_id FROM stagepost_journal WHERE waypoint = 'died' AND detail LIKE 'its process died%'"
    )
    # As many as it has threads, and no more: the others were given back.
    assert len(found) <= 2
    return {flow for (flow,) in found}


def test_numbers_that_a_crash_of_the_server_gives_out_again_let_nobody_take_what_is_not_his(
    books: PostgresBooks, mortal_postgres: OwnServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """A claim is not forced to the disk, and what became due with it has got its row by it. After the crash that row's
    number is another message's, of the same owner: the first of two handlers wakes up with the second one's fence."""
    first, second = tmp_path / "first", tmp_path / "second"
    late = Flow("late", "chore", f"gate-once={first}")
    # The commit of a counted hour would force the claim to the disk.
    count_hours(books.url)
    # What is written begins a page of the log: a full one would be forced to the disk, and the numbers with it.
    mortal_postgres.execute(b"SELECT pg_switch_wal()")
    with without_writers(mortal_postgres):
        books.start([late], delay=0.3)
        worker = fleet.process(threads=2)
        wait_until(Path(f"{first}.entered").exists, "the one that had become due is in its handler")
        wait_until(books.is_looked_at, "its housekeeper has begun, and looks who lives")
        # So that it claims nothing before the other message is there.
        worker.signal(signal.SIGSTOP)
        during(books, mortal_postgres, killed)
    assert books.waiting() == books.number("SELECT count(*) FROM stagepost_delayed") == 1, "the claim was on the disk"
    other = Flow("other", "chore", f"gate-once={second}")
    books.start([other])
    worker.signal(signal.SIGCONT)
    wait_until(Path(f"{second}.entered").exists, "the other one is in its handler")
    Path(f"{first}.open").touch()
    wait_until(lambda: worker.logged("lease-lost") or books.entries() > 1, "the first one has come to its fence")
    Path(f"{second}.open").touch()
    settle(books)
    assert books.problems([late, other]) == []
    assert books.blamed("failed") == []
    assert books.blamed("died") == []


def count_hours(url: str) -> None:
    """Count the present hour of housekeeping and the next one, as a worker before this one would have done."""
    now = SystemClock().now()
    with closing(open_store(url).session()) as session, committing(session):
        for moment in (now, now + 3600 * SECOND):
            session.retention.count_hour(moment)


@contextmanager
def kept_running(fleet: WorkerFleet, count: int) -> Iterator[list[Member]]:
    """As a service manager keeps it: a command is started again when it was killed, or met no server and ended."""

    def start() -> Member:
        return fleet.command("--processes", "2", "--threads", "2", tune="death=0.1")

    def keep() -> None:
        while not is_over.wait(LOOK_SECONDS):
            commands[:] = [each if each.is_running() else start() for each in commands]

    commands = [start() for _ in range(count)]
    is_over = threading.Event()
    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield commands
    finally:
        is_over.set()
        keeper.join()


@pytest.mark.more
@pytest.mark.parametrize("kills", [20, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_workers_supervisors_and_their_server_killed_at_random_leave_every_effect_exactly_once(
    kills: int, books: PostgresBooks, mortal_postgres: OwnServer, fleet: WorkerFleet
) -> None:
    random = Random(kills)
    flows = transfers(15 * kills, "slow=0.02")
    books.start(flows)
    with kept_running(fleet, 2) as commands:
        for number in range(1, kills + 1):
            get_on(books, random.randint(1, 8))
            replenish(books, flows, 20, "slow=0.02")
            if number % 10 == 0:
                during(books, mortal_postgres, random.choice([killed, stopped_at_once]))
            elif random.random() < 0.2:
                random.choice(commands).kill()
            else:
                kill(random.choice(wait_until(lambda: fleet.pids(PROCESS), "there is somebody to kill")))
        settle(books, 2 * STANDSTILL_SECONDS)
    assert books.problems(flows) == []
    assert books.blamed("failed") == []
    assert books.letters() == []


@pytest.fixture
def small_disk(mortal_postgres: OwnServer, tmp_path: Path) -> Iterator[Path]:
    with mounted(mortal_postgres.folder / f"disk-{tmp_path.name}", "48m", 2048) as disk:
        account = account_for_the_server()
        if account is not None:
            shutil.chown(disk, account)
        yield disk


@pytest.fixture
def small_bank(small_disk: Path, mortal_postgres: OwnServer) -> Iterator[PostgresBooks]:
    """Its tables are on the small disk; what the server itself needs to live is not."""
    place = sql.Identifier(small_disk.name)
    mortal_postgres.execute(sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(place, sql.Literal(str(small_disk))))
    url = mortal_postgres.new_database()
    mortal_postgres.execute(
        sql.SQL("ALTER DATABASE {} SET TABLESPACE {}").format(sql.Identifier(url.rpartition("/")[2]), place)
    )
    books = PostgresBooks(url)
    yield books
    books.close()
    mortal_postgres.drop_database(url)
    mortal_postgres.execute(sql.SQL("DROP TABLESPACE {}").format(place))


@pytest.fixture
def small_fleet(small_bank: PostgresBooks, tmp_path: Path) -> Iterator[WorkerFleet]:
    fleet = WorkerFleet(small_bank, tmp_path)
    yield fleet
    fleet.kill_all()


@pytest.mark.parametrize("is_killed", [False, True], ids=["left alone", "killed meanwhile"])
def test_a_full_disk_of_the_server_counts_against_no_message_and_all_is_done_once_there_is_room_again(
    is_killed: bool, small_bank: PostgresBooks, small_fleet: WorkerFleet, small_disk: Path, tmp_path: Path
) -> None:
    """Some of the handlers write more than the pages that there are have room for."""
    large = chores(2, f"gate={tmp_path}/gate count={tmp_path}/count late-write-much")
    flows = [*large, *transfers(10)]
    small_bank.start(flows)
    worker = small_fleet.command("--threads", "2", tune="death=0.1")
    wait_until((tmp_path / "gate.entered").exists, "handlers are about to write")
    with full(small_disk):
        (tmp_path / "gate.open").touch()
        wait_until(lambda: (tmp_path / "count").exists() and (tmp_path / "count").stat().st_size > 6, "they try again")
        if is_killed:
            for pid in small_fleet.pids(PROCESS):
                small_fleet.end(pid)
            wait_until(lambda: small_fleet.pids(PROCESS), "it has been replaced")
    settle(small_bank)
    assert worker.is_running()
    assert small_bank.problems(flows) == []
    assert small_bank.blamed("failed") == []
    assert is_killed or small_bank.blamed("died") == []


@pytest.mark.more
@pytest.mark.parametrize("is_pooled", [False, True], ids=["plain", "through a pooler"])
def test_a_message_that_crashes_its_backend_runs_alone_then_is_a_dead_letter_and_nobody_else_is_blamed(
    books: PostgresBooks, fleet: WorkerFleet, tmp_path: Path, is_pooled: bool, pooled_by: Pooled
) -> None:
    """Each crash takes the connections of all others down too. A pooler ends both in the same words."""
    if is_pooled:
        fleet.url = pooled_by("session", server=books.url).url_of(books.url)
    visits = tmp_path / "visits"
    flows = [
        *chores(20),
        Flow("deadly", "chore", f"count={visits} crash-the-backend", dies_at="bank.chore"),
        *transfers(10),
    ]
    books.start(flows)
    books.close()
    worker = fleet.command("--drain", "--processes", "2", "--threads", "2", tune="death=0.1,retry=0.1")
    assert worker.wait() == 0
    assert books.problems(flows) == []
    assert {line.split()[1] for line in books.blamed("died")} == {"deadly"}
    assert books.blamed("failed") == []
    assert books.letters() == [("deadly", "bank.chore", "worker-died", 0, 4)]
    # Beside others, three times; then alone, three times.
    assert len(visits.read_text()) == 6


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_crashes_of_a_backend_lose_and_double_nothing_and_bury_nobody(
    books: PostgresBooks, fleet: WorkerFleet, tmp_path: Path, tell: Tell
) -> None:
    crashes = [Flow(f"x{n}", "chore", f"crash-the-backend-once={tmp_path}/{n}") for n in range(50)]
    flows = [flow for pair in zip(crashes, transfers(50), strict=True) for flow in pair]
    books.start(flows)
    books.close()
    worker = fleet.command("--drain", "--processes", "2", "--threads", "2", tune="retry=0.1")
    assert worker.wait() == 0
    problems = books.problems(flows)
    tell("50 crashes of a back end", problems)
    assert problems == []
    assert books.letters() == []
    assert len(list(tmp_path.glob("[0-9]*"))) >= 50
