"""Checks of `write_file`, `read_file` and `list_files`."""

from __future__ import annotations

from ...base import Executor, FileEntry, Status
from ...errors import SandboxFileError, SandboxFileNotFoundError, SandboxFileTooLargeError, SandboxPermissionError
from .checks import CODE, box_check, expect, raises, require

TOO_LARGE = (64 << 20) + 1  # bytes; no `Limits.max_file` allows as much


def _require_bytes(got: bytes, wanted: bytes, what: str) -> None:
    require(type(got) is bytes, f"read_file returns bytes, got {type(got).__name__}")
    require(got == wanted, f"{what}: wrote {len(wanted)} bytes {wanted[:60]!r}, read {len(got)} bytes {got[:60]!r}")


def _require_entries(got: list[FileEntry], wanted: list[tuple[str, str]]) -> None:
    found = [(entry.path, entry.kind) for entry in got]
    require(found == wanted, f"the listing should be {wanted}, sorted by path, got {found}")


@box_check()
async def a_file_comes_out_as_it_went_in(box: Executor) -> None:
    """Bytes of every value come back unchanged, of a large or empty file too; text is encoded as UTF-8."""
    every = bytes(range(256))
    for name, data in (("every", every), ("large", every * 4096), ("empty", b""), ("text", "é\r\n日本\n")):
        await box.write_file(name, data)
        _require_bytes(await box.read_file(name), data.encode() if isinstance(data, str) else data, name)


@box_check()
async def a_file_is_replaced_whole(box: Executor) -> None:
    """Writing a file again replaces all of its content."""
    await box.write_file("f", b"a long text")
    await box.write_file("f", b"short")
    _require_bytes(await box.read_file("f"), b"short", "a file written again")


@box_check()
async def folders_are_made_for_a_file(box: Executor) -> None:
    """Missing folders above a file are made."""
    await box.write_file("a/b/c.txt", "x")
    _require_bytes(await box.read_file("a/b/c.txt"), b"x", "a nested file")
    _require_bytes(await box.read_file("a/./b/../b/c.txt"), b"x", "a nested file by another path")


@box_check()
async def a_listing_is_of_one_folder(box: Executor) -> None:
    """A listing is sorted, relative to its folder, and not recursive unless asked; that of a new box is empty."""
    _require_entries(await box.list_files(), [])
    for name in ("b.txt", "a/2", "a/1", "a/deep/3"):
        await box.write_file(name, "xyz")
    folder, file = "directory", "file"
    _require_entries(await box.list_files(), [("a", folder), ("b.txt", file)])
    _require_entries(await box.list_files("a"), [("1", file), ("2", file), ("deep", folder)])
    below = [("a", folder), ("a/1", file), ("a/2", file), ("a/deep", folder), ("a/deep/3", file), ("b.txt", file)]
    _require_entries(await box.list_files(recursive=True), below)
    _require_entries(await box.list_files("a", recursive=True), [(path[2:], kind) for path, kind in below[1:5]])
    require((await box.list_files())[1].size == 3, "a file's size is its bytes")


@box_check()
async def names_may_be_odd(box: Executor) -> None:
    """A name may hold spaces, newlines, quotes, a leading dash and characters beyond ASCII."""
    names = ["-rf", "a b", "new\nline", "quote'\"", "日本 é 🙂"]
    for name in names:
        await box.write_file(name, name)
    _require_entries(await box.list_files(), [(name, "file") for name in names])
    for name in names:
        _require_bytes(await box.read_file(name), name.encode(), repr(name))


@box_check()
async def a_missing_file_is_not_found(box: Executor) -> None:
    """Reading a missing file raises an error that names the file and is a FileNotFoundError."""
    for path in ("missing", "no/such/folder/f"):
        error = await raises(SandboxFileNotFoundError, box.read_file(path), f"read_file({path!r})")
        require(isinstance(error, FileNotFoundError), "the error is a FileNotFoundError too")
        require(error.filename == path and error.errno == 2, f"it has filename and errno, got {error!r}")
    await raises(SandboxFileNotFoundError, box.list_files("missing"), "list_files('missing')")


@box_check()
async def a_folder_is_not_a_file(box: Executor) -> None:
    """A folder is not read or written as a file; a file is not listed and holds no files."""
    await box.write_file("folder/f", "x")
    await raises(SandboxFileError, box.read_file("folder"), "reading a folder")
    await raises(SandboxFileError, box.write_file("folder", "x"), "writing onto a folder")
    await raises(SandboxFileError, box.list_files("folder/f"), "listing a file")
    await raises(SandboxFileError, box.write_file("folder/f/g", "x"), "writing below a file")
    await raises(SandboxFileError, box.read_file("folder/f/g"), "reading below a file")
    _require_bytes(await box.read_file("folder/f"), b"x", "after all that")


@box_check()
async def an_impossible_path_is_an_error(box: Executor) -> None:
    """NUL characters and very long names raise SandboxFileError in every operation, and so does an empty name."""
    await raises(SandboxFileError, box.read_file(""), "read_file('')")
    await raises(SandboxFileError, box.write_file("", b""), "write_file('')")
    for path in ("x\0y", "x" * 5000, "x" * 300):
        await raises(SandboxFileError, box.read_file(path), f"read_file({path!r:.20})")
        await raises(SandboxFileError, box.write_file(path, b""), f"write_file({path!r:.20})")
        await raises(SandboxFileError, box.list_files(path), f"list_files({path!r:.20})")


@box_check()
async def data_over_the_limit_is_not_written(box: Executor) -> None:
    """More than `Limits.max_file` is refused, and nothing is written."""
    error = await raises(SandboxFileTooLargeError, box.write_file("f", bytes(TOO_LARGE)), "writing 64 MiB and 1 byte")
    require(error.filename == "f", f"the error names the file, got {error!r}")
    await raises(SandboxFileNotFoundError, box.read_file("f"), "reading what was refused")


@box_check(CODE)
async def a_file_over_the_limit_is_not_read(box: Executor) -> None:
    """A file larger than `Limits.max_file` is not read, but is listed with its size."""
    expect(await box.python(f"with open('f', 'wb') as file: file.truncate({TOO_LARGE})"), status=Status.OK)
    await raises(SandboxFileTooLargeError, box.read_file("f"), "reading 64 MiB and 1 byte")
    require(await box.list_files() == [FileEntry(path="f", kind="file", size=TOO_LARGE)], "it is listed")


@box_check(CODE)
async def the_code_and_the_caller_see_the_same_files(box: Executor) -> None:
    """Relative paths start in the code's directory, and a written file belongs to the code's user."""
    await box.write_file("given/in.txt", "in")
    expect(await box.bash("cat given/in.txt; rm given/in.txt; echo out > given/out.txt"), status=Status.OK, stdout="in")
    _require_bytes(await box.read_file("given/out.txt"), b"out\n", "a file of the shell's")
    await box.write_file("mine", "1")
    code = "import os\nwith open('mine', 'a') as f: f.write('2')\nos.stat('mine').st_uid == os.getuid()"
    expect(await box.python(code), status=Status.OK, value="True")
    _require_bytes(await box.read_file("mine"), b"12", "a file that the code has changed")


@box_check(CODE)
async def absolute_paths_are_paths_in_the_box(box: Executor) -> None:
    """An absolute path means the same to the caller and to the code, whatever the sessions' directories."""
    home = (await box.bash("pwd; mkdir d; cd d")).stdout.strip()
    await box.write_file(f"{home}/x", "1")
    await box.write_file("d/y", "2")
    _require_bytes(await box.read_file("x"), b"1", "an absolute path")
    _require_bytes(await box.read_file(f"{home}/d/y"), b"2", "a relative path after `cd`")
    expect(await box.bash("cat ../x y"), stdout="12")


@box_check(CODE)
async def links_are_listed_and_not_followed(box: Executor) -> None:
    """A symbolic link, dangling or not, is listed as a link; it is neither read nor written."""
    await box.bash("mkdir folder; echo x > folder/target; ln -s folder/target link; ln -s nowhere dangling")
    await box.bash("ln -s folder linked")
    for path in ("link", "dangling"):
        await raises(SandboxPermissionError, box.read_file(path), f"reading a link ({path})")
        await raises(SandboxPermissionError, box.write_file(path, "y"), f"writing through a link ({path})")
    wanted = [("dangling", "link"), ("folder", "directory"), ("folder/target", "file"), ("link", "link")]
    _require_entries(await box.list_files(recursive=True), [*wanted, ("linked", "link")])
    _require_bytes(await box.read_file("folder/target"), b"x\n", "the target of a link")


@box_check(CODE)
async def pipes_and_devices_are_not_files(box: Executor) -> None:
    """A pipe or a device is refused at once, and a pipe is listed as `other`."""
    await box.bash("mkfifo pipe")
    for path in ("pipe", "/dev/zero"):
        await raises(SandboxFileError, box.read_file(path), f"reading {path}")
    await raises(SandboxFileError, box.write_file("pipe", "x"), "writing a pipe")
    _require_entries(await box.list_files(), [("pipe", "other")])


@box_check(CODE)
async def names_need_not_be_utf_8(box: Executor) -> None:
    """A file whose name is not UTF-8 is listed under a name by which it can be read."""
    expect(await box.python("with open(b'\\xff', 'w') as f: f.write('x')"), status=Status.OK)
    [entry] = await box.list_files()
    _require_bytes(await box.read_file(entry.path), b"x", f"the file {entry.path!r}")


@box_check(CODE)
async def files_closed_to_the_code_are_closed_to_the_caller(box: Executor) -> None:
    """The caller reaches files with the rights of the code's user, never with more."""
    expect(await box.bash("echo x > closed; chmod 000 closed; mkdir locked; chmod 000 locked"), status=Status.OK)
    if (await box.python("import os; os.getuid()")).value == "0":
        return  # for the superuser nothing is closed
    await raises(SandboxPermissionError, box.read_file("closed"), "reading a file of mode 000")
    await raises(SandboxPermissionError, box.write_file("locked/f", "x"), "writing into a folder of mode 000")
    await raises(SandboxPermissionError, box.list_files("locked"), "listing a folder of mode 000")
