"""Java is found where it is, and explained where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import limits
from millrace.errors import NotFound
from millrace.spark.java import Java, find_java, read_settings


def install(home: Path, version: str) -> Path:
    """A program that says what a Java of that version would."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"echo 'openjdk version \"{version}\"' >&2\n"
    )
    program.chmod(0o755)
    return home


@pytest.mark.process
def test_the_real_one_is_found_and_runs() -> None:
    java = find_java()
    assert java.version >= limits.JAVA_VERSION_MIN
    assert java.executable.is_file()
    assert find_java({"JAVA_HOME": str(java.home)}, ()) == java


@pytest.mark.process
def test_java_home_comes_before_the_path_and_that_before_folders(tmp_path: Path) -> None:
    named = install(tmp_path / "named", "21")
    on_path = install(tmp_path / "path", "25")
    usual = install(tmp_path / "jvm" / "java-17", "17")
    environment = {"JAVA_HOME": str(named), "PATH": f"/usr/bin/none:{on_path / 'bin'}"}
    folders = (f"{tmp_path}/jvm/*",)
    assert find_java(environment, folders) == Java(named, 21)
    del environment["JAVA_HOME"]
    assert find_java(environment, folders) == Java(on_path, 25)
    assert find_java({}, folders) == Java(usual, 17)


@pytest.mark.process
def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "1.8")
    newer = install(tmp_path / "jvm" / "java-21", "21")
    install(tmp_path / "jvm" / "java-11", "11")
    assert find_java({"JAVA_HOME": str(old)}, (f"{tmp_path}/jvm/*",)) == Java(newer, 21)


@pytest.mark.process
def test_the_error_says_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "11")
    broken = tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(NotFound) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(broken.parent)}, ())
    assert caught.value.field == "JAVA_HOME"
    assert caught.value.limit == 17
    for part in (
        f"{old}/bin/java is Java 11",
        f"{broken} does not say its version",
        "openjdk-17-jre-headless",
        "java-21-openjdk-headless",
        "openjdk@21",
    ):
        assert part in caught.value.message


def test_where_there_is_none_nothing_is_said_to_be_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"Spark runs on it; install one"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, (f"{tmp_path}/*",))


@pytest.mark.process
def test_a_link_to_one_that_was_asked_is_not_asked_again(tmp_path: Path) -> None:
    old = install(tmp_path / "jvm" / "java-11", "11")
    (tmp_path / "jvm" / "default").symlink_to(old)
    with pytest.raises(NotFound) as caught:
        find_java({}, (f"{tmp_path}/jvm/*",))
    assert caught.value.message.count("is Java 11") == 1


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.8", 8), ("9", 9), ("17", 17), ("25", 25), ("", None), ("seventeen", None)],
)
def test_versions_are_read(version: str, expected: int | None) -> None:
    text = f"  java.home = /a b/jvm\n  java.specification.version = {version}\n  java.vm.x = 1\n"
    java = read_settings(text)
    assert (java and java.version) == expected
    if java is not None:
        assert java.home == Path("/a b/jvm")


def test_what_names_no_home_is_no_java() -> None:
    assert read_settings("openjdk version 17\n java.specification.version = 17\n") is None
