"""Where a file lies, and who has it open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stagepost.store.sqlite.disk import FileSystem, OpenFile, file_system, holders

MOUNTS = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:27 / /dev/shm rw shared:5 - tmpfs tmpfs rw
31 22 0:40 / /mnt/our\040files rw,relatime - nfs4 store:/files rw,vers=4.2
32 31 0:41 / /mnt/our\040files/local rw,relatime - xfs /dev/vdb rw
33 22 0:42 / /mnt/far rw - fuse.sshfs ada@store:/ rw
34 22 0:43 / /mnt/twice rw - ext4 /dev/vdc rw
35 34 0:44 / /mnt/twice rw master:3 - cifs //store/files rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS.lstrip())
    return path


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("/var/lib/shop.db", "local", "ext4"),
        ("/dev/shm/shop.db", "memory", "tmpfs"),
        ("/dev/shmem/shop.db", "local", "ext4"),
        ("/mnt/our files/shop.db", "network", "nfs4"),
        ("/mnt/our files/local/shop.db", "local", "xfs"),
        ("/mnt/far/a/b/shop.db", "network", "fuse.sshfs"),
        ("/mnt/twice/shop.db", "network", "cifs"),
    ],
)
def test_a_file_lies_on_what_was_mounted_last_on_the_longest_way_to_it(
    path: str, kind: str, name: str, mounts: Path
) -> None:
    assert file_system(Path(path), mounts) == FileSystem(kind, name)  # type: ignore[arg-type]


def test_a_system_that_does_not_tell_leaves_it_unknown(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "no-such-file").kind == "unknown"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who has a file open")
def test_others_that_have_the_file_open_are_named_by_their_program_and_this_process_is_not(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.touch()
    with (
        path.open(),
        subprocess.Popen(
            [sys.executable, "-c", "import sys; f = open(sys.argv[1]); print(flush=True); sys.stdin.read()", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        assert [each.pid for each in holders(path)] == [process.pid]
        assert holders(path)[0].program.startswith("python")
        process.communicate()
    assert holders(path) == []


def test_processes_that_end_meanwhile_or_hide_are_passed_over(tmp_path: Path) -> None:
    for name in ("1", "self", "2"):
        (tmp_path / name / "fd").mkdir(parents=True)
    wanted = tmp_path / "shop.db"
    (tmp_path / "2" / "fd" / "5").symlink_to(wanted)
    assert holders(wanted, tmp_path) == []
    (tmp_path / "2" / "comm").write_text("backup\n")
    assert holders(wanted, tmp_path) == [OpenFile(2, "backup")]
    assert holders(wanted, tmp_path / "none") == []
    assert os.getpid() not in {each.pid for each in holders(wanted, tmp_path)}
